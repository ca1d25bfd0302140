"""Practice: one line of the engine, and every kind of feedback a lab can give."""

from minivllm.outputs import CompletionOutput, RequestMetrics, RequestOutput


def ttft(lab, arrival, first, last=None, num_preemptions=0):
    return lab.new("outputs.RequestMetrics", arrival, first, last, num_preemptions).ttft_s


def test_1_a_number_you_can_do_by_hand(lab):
    lab.same(ttft(lab, 10.0, 12.5), 2.5,
             "A request came at 10.0 seconds and had its first token at 12.5. It waited so many "
             "seconds:")  # fmt: skip


def test_2_there_is_none_before_the_first_token(lab):
    lab.same(ttft(lab, 10.0, None), None, "There is no first token yet, so there is no number.")


def test_3_a_clock_may_start_at_zero(lab):
    lab.same(ttft(lab, 0.0, 1.5), 1.5, "The request came when the clock stood at 0.0.")


def test_4_an_instant_answer_took_no_time(lab):
    lab.same(ttft(lab, 7.0, 7.0), 0.0, "The first token came at once: no time, but a token.")
    lab.same(ttft(lab, 0.0, 0.0), 0.0, "It came at once, and the clock stood at 0.0.")


def test_5_later_tokens_change_nothing(lab):
    lab.same(ttft(lab, 10.0, 12.5, 99.0), 2.5,
             "The last token so far came at 99.0; the first one came at 12.5 all the same.",
    )  # fmt: skip


def test_6_a_stop_in_between_changes_nothing(lab):
    lab.same(ttft(lab, 10.0, 12.5, 99.0, 3), 2.5,
             "The request was stopped three times. Its first token came at 12.5 all the same.",
    )  # fmt: skip


def test_7_keeps_every_digit(lab):
    for _ in range(5):
        arrival, waited = lab.random.uniform(0, 1000), lab.random.uniform(0.001, 0.02)
        lab.same(ttft(lab, arrival, arrival + waited), (arrival + waited) - arrival,
                 "A fast server: a few thousandths of a second, exactly.")  # fmt: skip


def test_8_the_chat_shows_it(lab):
    for first, shown in ((1.25, "0.25 s"), (2.5, "1.50 s")):
        answer = RequestOutput(
            "a", None, (1, 2, 3), (CompletionOutput(0, "yes", (4, 5)),), True,
            metrics=RequestMetrics(1.0, first, first + 1),
        )  # fmt: skip
        lab.same(
            lab.call("commands.chat.stats", answer),
            f"3 tokens in, 2 out; first token after {shown} (TTFT), then 1.0 tokens/s",
            f"/stats in the chat. The request came at 1.0 and had its first token at {first}.",
        )
