"""Daemons of two state formats side by side: refused at hello with both numbers, requests go to the
peer that fits, and an upgrade from one to the other loses none."""
import concurrent.futures
import http.client
import threading
import time

import pytest

import harness as h

OLD, NEXT = "", "_next"
BOTH_NUMBERS = ("state format: mine 1, theirs 2", "state format: mine 2, theirs 1")


def peers(daemon, role, state):
    return daemon.metrics().get(f'akv_peers{{role="{role}",state="{state}"}}', 0)


def start(side, role, *flags):
    make = h.prefill if role == "prefill" else h.decode
    return make("--heartbeat-ms", "200", *flags, program=f"{role}_node{side}")


def front_door(side, prefills, decodes):
    """A pure front door that lists all peers, those that do not fit too."""
    return start(side, "decode", "--max-sessions", "0",
                 "--prefill", ",".join(p.ready["control"] for p in prefills),
                 "--decode", ",".join(d.ready["control"] for d in decodes))


@pytest.fixture
def sides():
    """{side: {role: daemon}}; the front doors of both list the nodes of both."""
    made = {side: {role: start(side, role) for role in ("prefill", "decode")}
            for side in (OLD, NEXT)}
    nodes = [[made[side][role] for side in (OLD, NEXT)] for role in ("prefill", "decode")]
    for side in (OLD, NEXT):
        made[side]["door"] = front_door(side, *nodes)
    for side in (OLD, NEXT):
        for role in ("prefill", "decode"):
            h.wait_until(lambda: peers(made[side]["door"], role, "up") == 1
                         and peers(made[side]["door"], role, "refused") == 1, what="two hellos")
    yield made
    for daemons in made.values():
        for daemon in daemons.values():
            daemon.close()


def ask(door, seed=0, tokens=8):
    status, reply = h.post(door, "/v1/completions", h.completion(
        h.long_prompt(300, seed), max_tokens=tokens, ignore_eos=True))
    return status, reply


def test_the_peer_that_fits_serves_and_the_other_is_refused_with_both_numbers(sides):
    for side in (OLD, NEXT):
        door = sides[side]["door"]
        refused = door.log_events("peer does not fit")
        assert {line["role"] for line in refused} == {"prefill", "decode"}
        assert all(line["reason"] in BOTH_NUMBERS for line in refused), refused
        for seed in range(4):
            status, reply = ask(door, seed)
            assert status == 200, reply
            assert reply["kv"]["prefill_node"] == sides[side]["prefill"].ready["control"]
    for side in (OLD, NEXT):
        metrics = sides[side]["prefill"].metrics()
        assert metrics['akv_requests_total{outcome="ok"}'] == 4
        assert metrics['akv_requests_total{outcome="failed"}'] == 0


def test_without_a_peer_that_fits_readiness_says_why(sides):
    door = sides[OLD]["door"]
    assert sides[OLD]["prefill"].stop() == 0
    h.wait_until(lambda: h.get(door, "/health/ready")[0] == 503, what="not ready")
    text = h.get(door, "/health/ready")[1].decode()
    assert any(numbers in text for numbers in BOTH_NUMBERS), text
    status, reply = ask(door)
    assert status == 503, reply
    # The other side does not notice.
    assert ask(sides[NEXT]["door"])[0] == 200


def test_an_upgrade_to_the_other_format_loses_no_request(sides):
    """As with a Service in front: clients go to a front door that is ready, and again to another
    one where that refuses. The old side leaves, from the outside in, while they ask."""
    wanted = [ask(sides[OLD]["door"], seed)[1]["choices"][0]["text"] for seed in range(4)]
    doors = [sides[side]["door"] for side in (OLD, NEXT)]
    stop = threading.Event()

    def client(seed):
        answers = []
        while not stop.is_set():
            for door in doors:
                try:
                    status, reply = ask(door, seed)
                except (ConnectionError, http.client.HTTPException):
                    continue
                if status == 200:
                    answers.append(reply["choices"][0]["text"] == wanted[seed])
                    break
                assert status == 503, reply
        return answers

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, seed) for seed in range(4)]
        time.sleep(1)
        for role in ("door", "decode", "prefill"):
            assert sides[OLD][role].stop(60) == 0
        before = sides[NEXT]["prefill"].metrics()['akv_requests_total{outcome="ok"}']
        h.wait_until(lambda: sides[NEXT]["prefill"].metrics()[
            'akv_requests_total{outcome="ok"}'] >= before + 8, 60, "answers of the other side")
        stop.set()
        answers = [answer for done in clients for answer in done.result(120)]
    assert len(answers) >= 8
    assert all(answers), answers
