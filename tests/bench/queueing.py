"""A small queueing model of N prefill and M decode nodes on cores: what scaling.py measures on few
cores, for clusters that are not here. Closed loop: every client asks again once it has its answer.

Each process runs on one core and shares it evenly with the busy processes there. A prefill node
works off its queue in order; a decode node steps all its sessions together, in a + b n seconds for
n of them. A front door sends a prompt to the shorter prefill queue and the session to the decode
node with fewer sessions, as the real one does."""
import dataclasses


@dataclasses.dataclass
class Load:
    clients: int
    requests: int  # of each client
    out: int       # tokens of an answer, the first one by prefill


@dataclasses.dataclass
class Costs:
    prefill_s: float  # CPU seconds of one prompt
    step_base_s: float
    step_session_s: float
    overhead_s: float = 0.0  # front door, transfer: not on these cores


class _Session:
    def __init__(self, client, asked):
        self.client, self.asked = client, asked
        self.first = None
        self.left = 0


class _Prefill:
    def __init__(self, core):
        self.core, self.queue, self.left = core, [], 0.0

    def busy(self):
        return bool(self.queue)


class _Decode:
    def __init__(self, core):
        self.core, self.sessions, self.stepping, self.left = core, [], [], 0.0

    def busy(self):
        return bool(self.stepping)


class Cluster:
    def __init__(self, prefill_cores, decode_cores, costs, load):
        self.prefill = [_Prefill(core) for core in prefill_cores]
        self.decode = [_Decode(core) for core in decode_cores]
        self.costs, self.load = costs, load
        self.now = 0.0
        self.asked = [0] * load.clients
        self.done = []  # (seconds to the first token, seconds a further token)
        self.live_integral = 0.0

    def ask(self, client):
        if self.asked[client] == self.load.requests:
            return
        self.asked[client] += 1
        node = min(self.prefill, key=lambda p: len(p.queue))
        node.queue.append(_Session(client, self.now))
        if len(node.queue) == 1:
            node.left = self.costs.prefill_s

    def begin_step(self, node):
        node.stepping = list(node.sessions)
        count = len(node.stepping)
        node.left = self.costs.step_base_s + self.costs.step_session_s * count if count else 0.0

    def prefilled(self, node):
        session = node.queue.pop(0)
        node.left = self.costs.prefill_s
        session.first, session.left = self.now, self.load.out - 1
        target = min(self.decode, key=lambda d: len(d.sessions))
        target.sessions.append(session)
        if not target.busy():
            self.begin_step(target)

    def stepped(self, node):
        for session in node.stepping:
            session.left -= 1
            if session.left > 0:
                continue
            node.sessions.remove(session)
            self.done.append((session.first - session.asked + self.costs.overhead_s,
                              (self.now - session.first) / max(1, self.load.out - 1)))
            self.ask(session.client)
        self.begin_step(node)

    def run(self):
        for client in range(self.load.clients):
            self.ask(client)
        while True:
            busy = [n for n in self.prefill + self.decode if n.busy()]
            if not busy:
                break
            on_core = {}
            for node in busy:
                on_core[node.core] = on_core.get(node.core, 0) + 1
            passed = min(node.left * on_core[node.core] for node in busy)
            self.now += passed
            self.live_integral += passed * sum(len(d.sessions) for d in self.decode)
            for node in busy:
                node.left -= passed / on_core[node.core]
            for node in busy:
                if node.left <= 1e-12:
                    (self.prefilled if isinstance(node, _Prefill) else self.stepped)(node)
        count = len(self.done)
        return {"ttft_s": sum(t for t, _ in self.done) / count,
                "itl_s": sum(i for _, i in self.done) / count,
                "requests_per_s": count / self.now,
                "sessions": self.live_integral / self.now}
