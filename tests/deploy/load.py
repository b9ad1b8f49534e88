"""A steady load over several front doors, that knows the right answers."""
import concurrent.futures
import http.client
import itertools
import json
import threading
import time

from namespaces import h

PROMPTS = 4
ANSWER_TOKENS = 8


class Load:
    """`rate` requests a second, whether answers come or not. A client goes to the next front door
    where one is away or says 429 or 503; when all do, it waits as Retry-After says and asks again,
    for `patience` seconds: then it was refused, as by a 504. Lost is what broke off or ended in any
    other way."""

    def __init__(self, doors, options):
        self.doors, self.rate, self.patience = doors, options.rate, options.patience
        self.bodies = [h.completion(h.long_prompt(options.tokens, seed), max_tokens=ANSWER_TOKENS,
                                    ignore_eos=True) for seed in range(PROMPTS)]
        self.turn = itertools.count()
        self.wanted = [self.ask(body) for body in self.bodies]
        assert all(self.wanted), "refused without load"
        self.outcomes = []  # (outcome, seconds)
        self.sent = 0
        self.stop = threading.Event()
        self.begin = time.monotonic()
        self.pool = concurrent.futures.ThreadPoolExecutor(1024)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def ask(self, body):
        """The text, or None where every front door refused until patience ended."""
        deadline = time.monotonic() + self.patience
        while True:
            pause = 1.0
            for _ in self.doors:
                try:
                    status, reply, wait = self.post(self.doors[next(self.turn) % len(self.doors)],
                                                    body)
                except ConnectionRefusedError:
                    continue
                if status == 200:
                    return reply["choices"][0]["text"]
                if status == 504:
                    return None
                if status not in (429, 503) or "message" not in reply["error"]:
                    raise RuntimeError(f"status {status}: {reply}")
                pause = float(wait)
            if time.monotonic() + pause > deadline:
                return None
            time.sleep(pause)

    def post(self, address, body):
        connection = http.client.HTTPConnection(address, timeout=600)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers.get("Retry-After", "1")
        finally:
            connection.close()

    def one(self, which):
        begin = time.monotonic()
        try:
            text = self.ask(self.bodies[which])
            outcome = ("refused" if text is None else
                       "right" if text == self.wanted[which] else "wrong")
        except Exception as error:  # whatever broke it
            print(f"lost: {error!r}", flush=True)
            outcome = "lost"
        self.outcomes.append((outcome, time.monotonic() - begin))

    def run(self):
        while not self.stop.wait(max(0, self.begin + self.sent / self.rate - time.monotonic())):
            self.pool.submit(self.one, self.sent % PROMPTS)
            self.sent += 1

    def count(self, outcome):
        return sum(was == outcome for was, _ in self.outcomes)

    def progress(self):
        return f"{self.sent} asked, {self.count('right')} answered"

    def end(self):
        """Waits for all answers, prints the sum; true where none was lost or wrong."""
        self.stop.set()
        self.thread.join()
        seconds = time.monotonic() - self.begin
        self.pool.shutdown()
        times = sorted(took for was, took in self.outcomes if was == "right") or [0]
        print(f"{self.sent} requests in {seconds:.0f} s: {self.count('right')} right, "
              f"{self.count('refused')} refused, {self.count('lost')} lost, "
              f"{self.count('wrong')} wrong; the last answer after "
              f"{time.monotonic() - self.begin:.0f} s; seconds to the whole answer: median "
              f"{times[len(times) // 2]:.1f}, 95% {times[int(len(times) * 0.95)]:.1f}, "
              f"most {times[-1]:.1f}", flush=True)
        return self.count("lost") == 0 and self.count("wrong") == 0
