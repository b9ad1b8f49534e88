#!/usr/bin/env python3
"""Asks one question about a document, streams the answer, prints what the request cost.

Standard library only. Exit status 0 when an answer came to its end, 1 otherwise.
"""

import argparse
import http.client
import json
import sys
import time
import urllib.parse


def read_events(response):
    """The JSON payloads of a server-sent event stream, up to [DONE]."""
    for line in response:
        line = line.decode("utf-8").rstrip("\r\n")
        if not line.startswith("data: "):
            continue  # comments keep the connection alive while the prompt is prefilled
        payload = line[len("data: "):]
        if payload == "[DONE]":
            return
        yield json.loads(payload)


def post(url, body):
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"HTTP {response.status}: {response.read().decode('utf-8', 'replace')}")
    return response


def stream_answer(response, begin):
    """Prints the deltas as they come; returns the usage chunk and the times of the deltas."""
    usage, times = None, []
    for event in read_events(response):
        if "error" in event:
            sys.exit(f"\nerror: {event['error']['message']}")
        if event.get("usage"):
            usage = event
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                times.append(time.monotonic() - begin)
                sys.stdout.write(text)
                sys.stdout.flush()
    print()
    return usage, times


def human_bytes(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count} B"
        count /= 1024
    return f"{count:.2f} GiB"


def print_table(usage, times):
    kv, counts = usage["kv"], usage["usage"]
    generated = counts["completion_tokens"]
    rows = [
        ("prompt tokens", f"{kv['prompt_tokens']:,}"),
        ("dense KV bytes", f"{kv['dense_bytes']:,} ({human_bytes(kv['dense_bytes'])})"),
        ("state bytes shipped", f"{kv['state_bytes']:,} ({human_bytes(kv['state_bytes'])})"),
        ("ratio", f"{kv['ratio']:.2f}x (codec {kv['codec']}, profile {kv['profile']}, "
                  f"theta {kv['theta']:.4g})"),
        ("time to first token", f"{times[0]:.2f} s (prefill {kv['prefill_ms'] / 1000:.2f} s, "
                                f"compression {kv['compress_ms'] / 1000:.3f} s)"),
        ("transfer", f"{kv['transfer_ms'] / 1000:.3f} s"),
    ]
    if len(times) > 1 and times[-1] > times[0] and generated > 1:
        rate = (generated - 1) / (times[-1] - times[0])
        rows.append(("decode", f"{rate:.1f} tokens/s ({generated} tokens)"))
    width = max(len(name) for name, _ in rows)
    print()
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--document", required=True)
    parser.add_argument("--question", required=True)
    parser.add_argument("--theta", default="auto")
    parser.add_argument("--max-tokens", type=int, default=96)
    args = parser.parse_args()

    with open(args.document, encoding="utf-8", errors="replace") as file:
        document = file.read()
    body = {
        "messages": [{"role": "user", "content": f"{document}\n{args.question}"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": args.max_tokens,
    }
    if args.theta != "auto":
        body["kv"] = {"theta": float(args.theta)}
    print(f"document: {len(document):,} characters\nquestion: {args.question}\nanswer: ", end="",
          flush=True)
    begin = time.monotonic()
    usage, times = stream_answer(post(args.url, body), begin)
    if not times or usage is None:
        sys.exit("the stream ended without an answer")
    print_table(usage, times)


if __name__ == "__main__":
    main()
