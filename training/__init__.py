"""How `tiny` and `small` came to be: `make models` repeats all of it, on two cores, in about two
hours; interrupted, it goes on where it stopped.

    openings.py   how stories begin: word lists and a seed
    stories.py    smollm2-135m goes on with them, through this engine; what is kept
    corpus.py     the vocabulary, and the stories as ids
    model.py      a Llama that learns
    learning.py   the loop: steps, learning rate, checkpoints, loss
    card.py       the two models written out, tried, and described

Nothing here is part of the engine, and nothing of the engine imports it.
"""
