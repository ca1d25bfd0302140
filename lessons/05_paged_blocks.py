import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="05 Paged blocks")

with app.setup(hide_code=True):
    import platform
    import time

    import marimo as mo

    from lessons import bars, draw, show
    from lessons.glossary import term
    from lessons.two_memories import (
        arrivals,
        law_by_block_size,
        serve_contiguous,
        serve_paged,
        where_it_went,
    )
    from minivllm.bench.arrivals import uniform
    from minivllm.bench.outcome import deploy, run
    from minivllm.bench.workload import workload_prefixes
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
        "needs": ["kv_cache"],
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

    A model keeps a key and a value of every {term("token")} it has read: the {term("KV cache")}
    (for Llama 3 8B in bfloat16, {_spec.bytes_per_token // 1024} KiB a token). Call the room for one
    token a {term("slot")}.

    Here is a small server with {NUM_SLOTS} slots. When a user comes, it sets a run of neighbouring
    slots aside, long enough for the prompt and for the longest answer that this user allows. That
    is how engines did it until 2023, because attention was written for arrays.

    At step {surprise.step} user **{surprise.refused[-1]}** asks for {surprise.wanted} slots.
    **{surprise.num_free} slots belong to nobody**, and still the answer is no.
    """)
    return (surprise,)


@app.cell(hide_code=True)
def _():
    guess = show.predict("How much of the memory holds no token, in percent?", start=30)
    show.column(
        mo.md(r"""
    ## 2. Your guess

    Count not only the slots that belong to nobody. Count every slot that holds **no token** at
    this moment, whoever it is promised to.
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

    * **reserved**: {_counted[draw.RESERVED]} slots wait for a token that will come, later;
    * **inside** (internal fragmentation): {_counted[draw.INSIDE]} slots are promised to a token
      that never comes, because the answer will end before its limit;
    * **outside** (external fragmentation): {_counted[draw.OUTSIDE]} slots are free, in holes too
      short for this user (the longest has {surprise.longest_hole}).

    Kwon et al., who measured such servers in 2023 (PagedAttention, SOSP), found 20% to 38% of KV
    memory holding tokens.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md(rf"""
    ## 3. Two servers, the same users

    Both servers have the same memory, and the same {len(arrivals(1))} users come at the same steps.
    In each step everybody who is in writes one token. Nobody queues: who finds no room is refused.

    The second server cuts its memory into {term("block", "blocks")} of a few slots. A user owns a
    list of blocks, wherever they lie, and gets the next one when the last is full. They are handed
    out by the engine's own `KVCacheManager` and `BlockPool`, or by yours (act 6).

    *Drag the step and see who is let in. Bring the users closer together. Then change the block
    size, and look for what grows.*
    """)
    return


@app.cell(hide_code=True)
def _(surprise):
    step = mo.ui.slider(0, 160, value=surprise.step, label="step", show_value=True)
    gap = mo.ui.slider(1, 6, value=2, label="steps between users", show_value=True)
    block_size = mo.ui.slider(
        steps=[1, 2, 4, 8, 16, 32, 64], value=16, label="slots in a block", show_value=True
    )
    mo.vstack([step, gap, block_size])
    return block_size, gap, step


@app.cell(hide_code=True)
def _(gap):
    users = arrivals(gap.value)
    num_steps = users[-1].step + 180
    contiguous = serve_contiguous(users, NUM_SLOTS, num_steps)
    return contiguous, num_steps, users


@app.cell(hide_code=True)
def _(block_size, chosen, contiguous, num_steps, users):
    paged = serve_paged(users, NUM_SLOTS, num_steps, block_size.value, chosen)
    served = f"{len(contiguous[-1].served)} \u2192 {len(paged[-1].served)}"
    return paged, served


@app.cell(hide_code=True)
def _(block_size, chosen, contiguous, paged, served, step):
    _before, _after = contiguous[step.value], paged[step.value]
    _at_once = [max(len(m.running) for m in moments) for moments in (contiguous, paged)]
    show.column(
        show.counters({
            "users served in the end": served,
            "at once, at most": f"{_at_once[0]} \u2192 {_at_once[1]}",
            "cut off in mid-answer": f"0 \u2192 {len(paged[-1].cut_off)}",
        }),
        show.picture(
            _before.memory("contiguous"),
            _after.memory(f"paged, on {chosen.name}", block_size.value),
            where_it_went(
                {"contiguous": _before, "paged": _after},
                "where the slots went",
                f"Step {step.value}: what each slot holds.",
            ),
        ),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _():
    show.column(
        mo.md(r"""
    *Outside* is gone for good: any free block will do, so no hole is too small. *Reserved* and
    *inside* shrink to the end of each user's last block.

    It has a price. A server that promises nothing can run out in mid-answer: then the newest user
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
    _pool = chosen("kvcache.block_pool.BlockPool")
    mo.md(f"""
    The paged server of act 3 now runs on **{chosen.name}** (its blocks come from
    `{_pool.__module__}.{_pool.__name__}`). Users served: **{served}**.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## 7. Measure

    What is paging worth on a real machine? An engine whose blocks are as long as the longest
    request it allows *is* a contiguous server: one block each, reserved to the end. So the same
    scheduler, with nothing changed but the block size, gives before and after. Times are
    **modelled**: Llama 3 8B in 16 bits on an RTX 4090, a step as long as the roofline says.

    Why should memory buy speed? A step reads all the weights once, for however many users are in
    it (lesson 02). Memory that is found again becomes users in a step, and so tokens a second.
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
    _load = workload_prefixes(100, prompt_len=uniform(100, 500), output_len=uniform(50, 400))
    _rates, _running = [], {}
    for _size in (2048, 16):
        _gpu = deploy("llama-3-8b", "rtx4090", block_size=_size)
        _run = run(_load, _gpu, block_size=_size)
        _tokens = sum(len(r.token_times) for r in _run.records)
        _rates.append((f"blocks of {_size}", _tokens / _run.makespan_s, draw.DECODE))
        _most = max(step.num_running for step in _run.steps)
        _running[f"at once, at most, in blocks of {_size}"] = _most
    show.column(
        show.counters(_running),
        show.picture(bars.bars(_rates, "tokens/s", "output tokens a second", "Modelled.", 0)),
        mo.md(r"""
    The same from a shell, one block size at a time:

    ```sh
    minivllm simulate --hardware rtx4090 -m llama-3-8b --rate 0 --requests 100 \
        --input-len 100-500 --output-len 50-400 --prefixes 0 --prefix-len 0 --block-size 2048
    ```
    """),
    )  # fmt: skip
    return


@app.cell(hide_code=True)
def _(chosen):
    _pool, _count = chosen("kvcache.block_pool.BlockPool")(1001), 200
    _started = time.perf_counter()
    for _ in range(_count):
        _pool.release(_pool.allocate(50))
    _us = (time.perf_counter() - _started) / _count / 50 * 1e6
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
    + Inside => The run was promised to tokens that never came. Nobody can know that before the
      answer ends.
    - Outside => Outside is memory that belongs to nobody, in holes too small. This had an owner.
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
    + Nobody would give the five back => It raises, so the caller never learns which ids were
      taken. They are lost for good: a leak that shows hours later.
    - Attention needs all six at once => Attention reads blocks one by one.
    - It would spoil the order of the queue => Order is no reason. The lost blocks are.
    ? Why does `release` give the last block of a request back first?
    + A prompt's beginning is then reused last => Blocks leave the queue in the order they came. A
      prefix cache wants the beginning to survive longest: another prompt may begin alike.
    - The last block is only partly full => A block is free or it is not; how full it was does not
      matter.
    - Going backwards is faster => It is not, and it would be no reason.
    """))  # fmt: skip
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
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
    system prompt, and you compute it a thousand times. Lesson 06, `prefix_hash`.
    """)
    return


if __name__ == "__main__":
    app.run()
