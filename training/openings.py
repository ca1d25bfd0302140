"""How stories begin: sentences with gaps, filled from word lists by a seed.

The lists are short on purpose. A model of 260 thousand numbers can know a few hundred words well.
"""

from __future__ import annotations

import random

GIRLS = [
    "Lily",
    "Mia",
    "Anna",
    "Rosa",
    "Zoe",
    "Ella",
    "Nina",
    "Ruby",
    "Sara",
    "Lucy",
    "Maya",
    "Ida",
]
BOYS = ["Tom", "Ben", "Sam", "Max", "Leo", "Finn", "Jack", "Omar", "Hugo", "Tim", "Noah", "Paul"]
ANIMALS = [
    "bear",
    "cat",
    "dog",
    "fox",
    "frog",
    "duck",
    "mouse",
    "rabbit",
    "bird",
    "owl",
    "fish",
    "pony",
    "cow",
    "hen",
    "pig",
    "sheep",
    "turtle",
    "squirrel",
    "hedgehog",
    "elephant",
    "lion",
    "monkey",
    "penguin",
    "goat",
    "bee",
    "snail",
]
SIZES = ["small", "little", "big", "tiny", "young", "old"]
MOODS = [
    "kind",
    "brave",
    "shy",
    "happy",
    "hungry",
    "sleepy",
    "curious",
    "lonely",
    "funny",
    "clever",
]
COLOURS = ["red", "blue", "green", "yellow", "white", "brown"]
TOYS = [
    "ball",
    "kite",
    "drum",
    "boat",
    "hat",
    "bell",
    "book",
    "box",
    "cup",
    "doll",
    "coat",
    "lamp",
    "basket",
    "bike",
    "wagon",
]
FOODS = ["apple", "cake", "pie", "carrot", "pear", "cookie", "plum", "nut", "bun"]
BAKED = ["cake", "pie", "cookie", "bun"]
PLACES = {
    "garden": "in",
    "park": "in",
    "forest": "in",
    "beach": "at",
    "hill": "on",
    "river": "by",
    "farm": "on",
    "pond": "by",
    "house": "in",
    "field": "in",
    "barn": "in",
    "meadow": "in",
    "lake": "by",
    "village": "in",
    "market": "at",
    "school": "at",
}
HIDING = [
    "under a leaf",
    "behind the door",
    "in the tall grass",
    "under the bed",
    "in a tree",
    "behind a rock",
    "by the gate",
    "in the snow",
    "near the old bridge",
]
TIMES = [
    "One day",
    "One morning",
    "One night",
    "One sunny day",
    "One rainy day",
    "In the spring",
    "One cold morning",
    "After lunch",
    "One windy day",
    "In the evening",
]
FAMILY = ["mother", "father", "grandma", "grandpa", "brother", "sister", "friend", "teacher"]
DEEDS = [
    "sing a song",
    "bake a cake",
    "fly a kite",
    "build a house",
    "find a friend",
    "swim in the lake",
    "see the moon",
    "climb the hill",
    "plant a tree",
    "paint a picture",
    "learn to dance",
    "help the farmer",
    "make a boat",
    "catch a fish",
    "ride a bike",
    "go to the market",
    "look at the stars",
    "play in the rain",
    "jump over the fence",
    "read a book",
]
FEARS = [
    "the dark",
    "the rain",
    "the big dog",
    "the thunder",
    "the deep water",
    "the wind",
    "the tall tree",
    "loud noises",
]

# {who} is a name or an animal with its article; {he}, {his}, {him} agree with it; {other} is
# somebody else. One sentence or two, so that there is something to go on from.
PATTERNS = [
    "{time}, {who} went to the {place}. {He} wanted to {deed}.",
    "{time}, {who} found a {colour} {toy} {hiding}. {He} picked it up and looked at it.",
    "{Who} had a {colour} {toy}. {He} liked to play with it {at} the {place}.",
    "{Who} lost {his} {toy}. {He} looked {hiding}, but it was not there.",
    "{Who} and {his} {family} baked a {baked}. It was big and warm.",
    "There was {a_animal} who wanted to {deed}. {He} asked {other} for help.",
    "{Who} was afraid of {fear}. {His} {family} took {him} by the hand.",
    '{time}, {who} met {other} {at} the {place}. "What are you looking for?" asked {other_short}.',
    "Once upon a time there was {a_animal}. {He} lived near the {place} with {his} {family}.",
    "{Who} could not sleep. {He} went to the window and saw the moon.",
    "{Who} had only one {food}. {Other} was hungry too.",
    "{time}, {who} and {other} wanted to {deed}. They took a {toy} and a {food} with them.",
    "It was a cold day {at} the {place}. {Who} gave {his} {toy} to {other}.",
    "{Who} did not want to share {his} {toy}. {Other} was sad.",
    "{time}, the wind was strong. {Who} saw a {toy} fly over the {place}.",
    "{Who} made a {toy} for {his} {family}. {He} painted it {colour}.",
    "{Who} heard a sound {hiding}. It was {other}.",
    '"Can you {deed}?" asked {who}. "I can show you how," said {other}.',
    "{Who} planted a seed near the {place}. Every day {he} gave it water.",
    "It was the birthday of {who}. {Other} came with a {colour} {toy}.",
    '{Who} was {mood}. {His} {family} said, "Let us go to the {place}."',
    "The {toy} of {who} was broken. {Other} knew how to mend it.",
    "{time}, it began to rain. {Who} and {other} ran to the {place}.",
    "{Who} wanted to be {mood} like {other}. So {he} tried to {deed}.",
]


def opening(rng: random.Random) -> str:
    """One beginning. The same state of rng gives the same one."""
    who, he = _somebody(rng)
    other, _ = _somebody(rng)
    while other == who:
        other, _ = _somebody(rng)
    animal = f"{rng.choice(SIZES)} {rng.choice(ANIMALS)}"
    pattern = rng.choice(PATTERNS)
    if "{a_animal}" in pattern:
        he = rng.choice(("he", "she"))
    his, him = ("his", "him") if he == "he" else ("her", "her")
    place = rng.choice(list(PLACES))
    words = {
        "who": who,
        "Who": _capital(who),
        "other": other,
        "Other": _capital(other),
        "other_short": _definite(other),
        "a_animal": _with_article(animal),
        "he": he,
        "He": he.capitalize(),
        "his": his,
        "His": his.capitalize(),
        "him": him,
        "time": rng.choice(TIMES),
        "place": place,
        "at": PLACES[place],
        "toy": rng.choice(TOYS),
        "food": rng.choice(FOODS),
        "baked": rng.choice(BAKED),
        "colour": rng.choice(COLOURS),
        "mood": rng.choice(MOODS),
        "hiding": rng.choice(HIDING),
        "family": rng.choice(FAMILY),
        "deed": rng.choice(DEEDS),
        "fear": rng.choice(FEARS),
    }
    text = pattern.format(**words)
    return _capital(text.replace("a apple", "an apple"))


def _somebody(rng: random.Random) -> tuple[str, str]:
    """Somebody as a sentence's subject, and "he" or "she"."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(GIRLS), "she"
    if kind < 0.6:
        return rng.choice(BOYS), "he"
    adjective = rng.choice(SIZES if rng.random() < 0.6 else MOODS)
    return _with_article(f"{adjective} {rng.choice(ANIMALS)}"), rng.choice(("he", "she"))


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _definite(who: str) -> str:
    """Somebody named before: "a small bear" becomes "the bear"."""
    return who if who[0].isupper() else f"the {who.split()[-1]}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
