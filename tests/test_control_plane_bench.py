"""`minivllm bench scheduler` measures what it says."""

import json

from minivllm.__main__ import main
from minivllm.bench.control_plane import cached_request, own_prompt, running_scheduler
from minivllm.kvcache.caches import CACHES
from minivllm.kvcache.kv_cache_manager import KVCacheManager


def test_the_measured_step_is_one_of_running_requests_that_each_gain_a_token():
    scheduler = running_scheduler("hash", 5, 40, None)
    assert len(scheduler.running) == 5 and not scheduler.waiting
    assert all(r.num_uncomputed_tokens == 1 for r in scheduler.running)
    scheduler.check()


def test_the_measured_prompt_is_found_whole():
    for name in ("hash", "radix"):
        cache = CACHES[name](16)
        kv = KVCacheManager(40, 16, cache)
        kv.free(cached_request(kv, 3, 160))
        assert len(cache.match_prefix(own_prompt(3, 160).prompt_token_ids, ())) == 10
        assert cache.match_prefix(own_prompt(4, 160).prompt_token_ids, ()) == []


def test_the_command_prints_every_figure_as_table_and_as_json(capsys):
    small = ["bench", "scheduler", "--requests", "3", "--tokens", "20", "--cached", "500"]
    assert main(small) == 0
    table = capsys.readouterr().out
    assert all(len(line) <= 80 for line in table.splitlines())
    assert main([*small, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {row["prefix_cache"] for row in figures["steps"]} == {"hash", "radix", "none"}
    assert all(row["step_s"] > 0 for row in figures["steps"])
    assert all(row["match_s"] > 0 < row["publish_s"] for row in figures["caches"])
    assert main(["bench", "scheduler", "--requests", "0"]) == 2
    assert "--requests must be at least 1" in capsys.readouterr().err
