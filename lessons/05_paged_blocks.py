import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="05 Paged blocks")

with app.setup(hide_code=True):
    import platform

    import marimo as mo

    from lessons import draw, show
    from lessons.block_sizes import law_by_block_size, served_twice, us_a_block
    from lessons.glossary import term
    from lessons.memory_map import MemoryMaps
    from lessons.two_memories import arrivals, serve_contiguous, serve_paged, where_it_went
    from minivllm.kvcache.block_pool import BlockPool
    from minivllm.kvcache.block_table import blocks_needed, slot_mapping
    from minivllm.kvcache.kv_cache_manager import KVCacheManager
    from minivllm.kvcache.spec import KVCacheSpec

    LESSON = {
        "number": 5,
        "slug": "paged_blocks",
        "title": "Paged blocks",
        "part": "II. Memory",
        "question": "A server has no memory left for a user, and most of its memory is empty. "
        "Where did it go?",
        "needs": ["first_token"],
        "reads": [
            "minivllm/kvcache/block_pool.py",
            "minivllm/kvcache/block_table.py",
            "minivllm/kvcache/kv_cache_manager.py",
        ],
        "lab": "paged_blocks",
        "runs_on": "browser",
        "minutes": 40,
    }
    NUM_SLOTS = 960  # KV memory of both servers: so many tokens


@app.cell(hide_code=True)
def _():
    show.header(LESSON)
    return


@app.cell(hide_code=True)
def _():
    _users = arrivals(gap=2)
    _moments = serve_contiguous(_users, NUM_SLOTS, 60)
    surprise = next(m for m in _moments if m.wanted and m.num_free >= m.wanted)
    _spec = KVCacheSpec(block_size=16, num_layers=32, num_kv_heads=8, head_dim=128, dtype_bytes=2)
    mo.md(rf"""
    ## 1. A full server that is empty

    A model remembers nothing from one question to the next (lesson 01). Its engine does: of every
    {term("token")} that was computed it keeps a **key** and a **value** in each layer of the model,
    the {term("KV cache")}. Both are lists of numbers. {term("attention", "Attention")}, the part of
    a model that looks back, finds an earlier token by its key, and takes from it its value. Neither
    changes afterwards, so nobody needs to compute them twice. For Llama 3 8B, with numbers of 2
    bytes ({term("bfloat16")}), they are {_spec.bytes_per_token // 1024} KiB for each token. Call
    the room for one token a {term("slot")}.

    (Lessons 02 to 04 are not written yet, nor are most of the later ones named below. What you need
    of them is the paragraph above, and one sentence in act 7.)

    Here is a small server with {NUM_SLOTS} slots. When a user comes, it sets a run of neighbouring
    slots aside, long enough for the prompt and for the longest answer that this user allows. That
    is how engines did it until 2023, because attention was written for arrays.

    At step {surprise.step} user **{surprise.refused[-1]}** asks for {surprise.wanted} slots.
    **{surprise.num_free} slots belong to nobody**, and still the answer is no.
    """)
    return (surprise,)


@app.cell(hide_code=True)
def _(surprise):
    _free = round(100 * surprise.num_free / NUM_SLOTS)
    guess = show.predict("How much of the memory holds no token, in percent?", start=_free)
    show.column(
        mo.md(rf"""
    ## 2. Your guess

    The slots that belong to nobody are {_free}% already. Count every slot that holds **no token**
    at this moment, whoever it is promised to.
    """),
        guess,
    )  # fmt: skip
    return (guess,)


@app.cell(hide_code=True)
def _(guess, surprise):
    _counted = {kind: surprise.count(kind) for kind in draw.TOKENLESS}
    show.reveal(
        guess.value,
        f"{surprise.empty_percent}%",
        rf"""
    {NUM_SLOTS - sum(_counted.values())} slots of {NUM_SLOTS} hold a token. The rest, three ways:

    * **reserved** waste: {_counted[draw.RESERVED]} slots wait for a token that will come, later;
    * **internal** waste: {_counted[draw.INSIDE]} slots are promised to a token that never comes,
      because the answer will end before its limit;
    * **external** waste: {_counted[draw.OUTSIDE]} slots are free, in holes too short for this user
      (the longest has {surprise.longest_hole}).

    Kwon et al., who measured such servers in 2023 (PagedAttention, SOSP), found 20% to 38% of KV
    memory holding tokens.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    gap = mo.ui.slider(1, 6, value=2, label="steps between users", show_value=True)
    block_size = mo.ui.slider(
        steps=[1, 2, 4, 8, 16, 32, 64], value=16, label="slots in a block", show_value=True
    )
    show.column(
        mo.md(rf"""
    ## 3. Two servers, the same users

    Both servers have the same memory, and the same {len(arrivals(1))} users come at the same steps.
    In each step everybody who is in writes one token. Nobody queues: who finds no room is refused.

    The second server cuts its memory into {term("block", "blocks")} of a few slots. A user owns a
    list of blocks, wherever they lie, and gets the next one when the last is full. They are handed
    out by the engine's own `KVCacheManager` and `BlockPool`, or by yours (act 6).

    A row of the picture is 64 slots (32 on a narrow screen); the letters are the users. *Drag the
    step and see who is let in. Bring the users closer together. Then make the blocks longer: what
    grows at the end of each user's memory?*
    """),
        gap,
        block_size,
    )  # fmt: skip
    return block_size, gap


@app.cell(hide_code=True)
def _(surprise):
    step = mo.ui.slider(0, 160, 1, surprise.step, label="step", show_value=True, full_width=True)
    step
    return (step,)


@app.cell(hide_code=True)
def _(block_size, chosen, contiguous, paged, served, step):
    _before, _after = contiguous[step.value], paged[step.value]
    _at_once = [max(len(m.running) for m in moments) for moments in (contiguous, paged)]
    _maps = (
        _before.memory("contiguous"),
        _after.memory(f"paged, on {chosen.name}", block_size.value),
    )
    show.column(
        show.picture(MemoryMaps(_maps, "two memories, slot by slot")),
        show.counters({
            "users served in the end": served,
            "at once, at most": f"{_at_once[0]} \u2192 {_at_once[1]}",
            "cut off in mid-answer": f"0 \u2192 {len(paged[-1].cut_off)}",
        }),
        show.picture(
            where_it_went(
                {"contiguous": _before, "paged": _after},
                "where the slots went",
                f"Step {step.value}: what each slot holds.",
            ),
        ),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _(block_size, chosen, gap):
    _users = arrivals(gap.value)
    _num_steps = _users[-1].step + 180
    contiguous = serve_contiguous(_users, NUM_SLOTS, _num_steps)
    paged = serve_paged(_users, NUM_SLOTS, _num_steps, block_size.value, chosen)
    served = f"{len(contiguous[-1].served)} \u2192 {len(paged[-1].served)}"
    return contiguous, paged, served


@app.cell(hide_code=True)
def _():
    show.column(
        mo.md(r"""
    *External* waste is gone for good: any free block will do, so no hole is too small. *Reserved*
    and *internal* waste shrink to the end of each user's last block. That end is what grows with
    the block size: in blocks of 64 about 32 slots of a user are empty. (Slots that are *free*
    are not wasted: whoever comes next may have them.)

    Promising nothing has a price. A server can run out in mid-answer: then the newest user
    is cut off. Lesson 11 (`preemption`) brings such users back without a word lost.

    ## 4. The law

    A request holds $n$ tokens now, and may come to $p + m$ (prompt and limit). Blocks have $B$
    slots. Unused slots of one request:

    | memory | unused slots | |
    |---|---|---|
    | contiguous | $p + m - n$ | grows with what the user *might* ask for |
    | paged | $\lceil n / B \rceil \cdot B - n \le B - 1$ | on average $(B - 1) / 2$, however long |

    Why not $B = 1$, then? Because of the table: a request keeps $\lceil n / B \rceil$ entries, and
    attention looks each of them up. Servers like those of act 3, counted at every step, agree:
    """),
        show.picture(law_by_block_size(arrivals(gap=4), NUM_SLOTS, 280, show.Engine())),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _():
    position = mo.ui.slider(0, 11, value=5, label="position of the token", show_value=True)
    show.column(
        mo.md(r"""
    **Where is a token, then?** The request's *block table* says. Position $i$ stands in entry
    $\lfloor i / B \rfloor$ of the table, at offset $i \bmod B$ of that block. A worked example: a
    request owns blocks 7, 2 and 9, of 4 slots each. Move along its tokens.
    """),
        position,
    )  # fmt: skip
    return (position,)


@app.cell(hide_code=True)
def _(position):
    _table, _size, _at = [7, 2, 9], 4, position.value
    _entry, _offset = divmod(_at, _size)
    (_slot,) = slot_mapping(_table, _at, 1, _size)
    _caption = (
        f"Position {_at}. Entry {_at} // {_size} = {_entry}: block {_table[_entry]}. Offset "
        f"{_at} % {_size} = {_offset}. Slot {_table[_entry]} x {_size} + {_offset} = {_slot}."
    )
    show.picture(draw.block_table(_table, _size, _at, 1, _caption))
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    An operating system does the same to a program's memory: *pages* for blocks, *page table* for
    block table, *address* for slot. The program believes that its memory is in one piece.

    ## 5. Read

    The engine around the lab. The functions that you will write are shown as the lab gives them to
    you; a click opens the body, and gives it away.
    """)
    return


@app.cell(hide_code=True)
def _(lab):
    show.column(
        show.show(
            BlockPool.__init__,
        BlockPool.allocate,
        BlockPool.release,
        BlockPool.give_back,
        slot_mapping,
        blocks_needed,
        KVCacheManager.allocate_slots,
            state=lab,
        ),
        mo.md(r"""
    `ref_cnt` counts who reads a block: two requests may share one (lesson 06), so a block goes back
    only when its last reader leaves. `self.cache` is the prefix cache of lesson 06; today it keeps
    nothing. Block 0 is never handed out: padding reads it.
    """),
        show.unchanged(
            "minivllm/scheduler/scheduler.py", "minivllm/request.py", "minivllm/engine/core.py"
        ),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## 6. Build

    Write `BlockPool.allocate`, `BlockPool.release` and `slot_mapping`. The docstrings are the whole
    contract. Each test that passes is one property of the pictures above; the last two run a
    thousand random steps, and the whole engine, on your blocks. (*Further*, on your own machine:
    `blocks_needed` and `KVCacheManager.allocate_slots`.)
    """)
    return


@app.cell(hide_code=True)
def _():
    lab_page = show.lab_in_page("paged_blocks")
    lab_page
    return (lab_page,)


@app.cell(hide_code=True)
def _(lab_page):
    lab = show.lab_result("paged_blocks", lab_page.value)
    lab
    return (lab,)


@app.cell(hide_code=True)
def _(lab):
    mine = show.use_my_code(lab)
    mine
    return (mine,)


@app.cell(hide_code=True)
def _(lab, mine):
    chosen = show.engine(mine.value, lab)
    return (chosen,)


@app.cell(hide_code=True)
def _(chosen, served):
    mo.md(f"""
    The paged server of act 3 now runs on **{chosen.name}**. Users served: **{served}**.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md(rf"""
    ## 7. Measure

    What is paging worth on a real machine? An engine whose blocks are as long as the longest
    request it allows *is* a contiguous server: one block each, reserved to the end. So the same
    scheduler, with nothing changed but the block size, gives before and after. Times are
    **modelled**: Llama 3 8B in 16 bits on an RTX 4090, a step as long as the {term("roofline")}
    says: as long as the chip's arithmetic takes, or its memory traffic, whichever is more.

    Why should memory buy speed? A step reads all the weights once, for however many users are in
    it (that is lesson 02 in a sentence). Memory that is found again becomes users in a step, and so
    tokens a second.
    """)
    return


@app.cell(hide_code=True)
def _():
    go = mo.ui.run_button(label="Serve 100 users twice (a few seconds)")
    go if mo.running_in_notebook() else None
    return (go,)


@app.cell(hide_code=True)
def _(go):
    mo.stop(mo.running_in_notebook() and not go.value)
    _at_once, _rates = served_twice()
    show.column(
        show.counters(_at_once),
        show.picture(_rates),
        mo.md(r"""
    The same from a shell, one block size at a time:

    ```sh
    minivllm simulate --hardware rtx4090 -m llama-3-8b --rate 0 \
        --requests 100 --input-len 100-500 --output-len 50-400 \
        --prefixes 0 --prefix-len 0 --block-size 2048
    ```
    """),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _(chosen):
    _us = us_a_block(chosen("kvcache.block_pool.BlockPool")(1001))
    mo.md(f"""
    And its cost, measured where this page was computed ({platform.system()} {platform.machine()},
    Python {platform.python_version()}, {chosen.name}): handing a block out and taking it back took
    **{_us:.2f} microseconds**. With 16 slots in a block, a request pays that once in 16 tokens.
    """)
    return


@app.cell(hide_code=True)
def _():
    show.column(mo.md("## 8. Check, and go on"), show.quizzes(r"""
    ? A user allows 1,000 tokens of answer and stops after 40. Which waste is that, mostly, in a
      contiguous memory?
    + Internal => The run was promised to tokens that never came. Nobody can know that before the
      answer ends.
    - External => That is memory which belongs to nobody, in holes too small. This had an owner.
    - Reserved => Reserved slots get their token in the end. Most of these never do.
    ? Blocks of 16. A request has 32 tokens and writes one more. How many blocks does it ask for?
    + One => 32 tokens fill two blocks to the last slot. Token 33 opens a third; then the request
      asks for nothing until token 49.
    - None => Both its blocks are full: 32 is exactly 2 x 16.
    - Three => It keeps the two it owns. Only what is missing is asked for.
    ? Table [7, 2, 9], blocks of 4. Which slot holds position 8?
    + 36 => 8 // 4 = 2, so block 9; 8 % 4 = 0. Slot 9 x 4 + 0 = 36.
    - 8 => That is where a contiguous memory that starts at 0 would have it.
    - 11 => 9 + 2 adds a block id and an index. A block begins at slot id x 4.
    ? Five blocks are free and six are asked for. Why must `allocate` take none at all?
    + Those five would be lost => It raises, so the caller never learns which ids were taken, and
      nobody gives them back: a leak that shows hours later.
    - Attention needs all six at once => Attention reads blocks one by one.
    - It would spoil the order of the queue => Order is no reason. The lost blocks are.
    ? Why does `release` give the last block of a request back first?
    + So that a prompt's beginning is reused last => Blocks leave the queue in the order they came,
      and a prefix cache wants the beginning to survive longest: another prompt may begin alike.
    - The last block is only partly full => A block is free or it is not; how full it was does not
      matter.
    - Going backwards is faster => It is not, and it would be no reason.
    """))  # fmt: skip
    return


@app.cell(hide_code=True)
def _():
    mo.md(f"""
    **How the large engines do it** (read in their repositories, November 2026):

    * vLLM: `vllm/v1/core/block_pool.py`, `BlockPool.get_new_blocks` and `free_blocks`. It raises
      before it takes anything, as yours does. Blocks that only the prefix cache knows stay in the
      free queue there, and are forgotten when they are handed out; here they leave it.
    * SGLang: `python/sglang/srt/mem_cache/allocator/paged.py`, `PagedTokenToKVPoolAllocator`. It
      hands out slots rather than blocks (`alloc_extend` for prompts, `alloc_decode` for one token
      each), in tensors, so that your `slot_mapping` is part of its allocator. Freed pages go to the
      front of the list and are reused first.
    * llama.cpp has no blocks: one array of cells for all requests, each cell marked with whose it
      is. (Paging was an open draft there in April 2026.)

    **Further**: make act 3's contiguous server smarter. Best fit instead of first fit? Moving runs
    together, as a garbage collector does: how many slots must be copied to let one user in?
    (`Contiguous` in `lessons/two_memories.py` is yours to change.)

    **Next**: your blocks know who reads them, not what is in them. A thousand users send the same
    system prompt, and you compute it a thousand times: that will be lesson 06, `prefix_hash`, which
    is not written yet. Go on with
    {show.lesson_link("09_continuous_batching", "lesson 09, Continuous batching")}: there is room
    for more users now, so who comes into the next step, and who waits?
    """)
    return


if __name__ == "__main__":
    app.run()
