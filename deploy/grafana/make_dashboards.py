#!/usr/bin/env python3
"""Writes dashboards/*.json from the panels below; a test holds the files to it.

usage: make_dashboards.py [FOLDER]

A panel: (title, unit, what it tells, {legend: expression}). Panels flow from left to right, three a
row; the first row of each dashboard are single numbers. The data source is the only variable.
Expressions use recording rules of ../prometheus where alerts do, so that both show one thing.
"""
import json
import pathlib
import sys

RATE = "[$__rate_interval]"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def quantile(q, name, by=""):
    return f"histogram_quantile({q}, sum by (le{by}) (rate({name}_bucket{RATE})))"


def quantiles(name):
    return {f"p{int(q * 100)}": quantile(q, name) for q in (0.5, 0.95, 0.99)}


def mean(name):
    return f"sum by (node) (rate({name}_sum{RATE})) / sum by (node) (rate({name}_count{RATE}))"


DECODE, PREFILL = '{job="akv-decode"}', '{job="akv-prefill"}'
REQUESTS = f"sum(rate(akv_requests_total{DECODE}{RATE}))"
ERRORS = 'outcome=~"error|timeout|unavailable"'

# name -> (title, stats, panels)
DASHBOARDS = {
    "overview": ("AnchorKV / overview", [
        ("Requests", "reqps", "Requests ended a second.", REQUESTS),
        ("Not answered", "percentunit", "Share ended by error, time-out or without a peer.",
         f'sum(rate(akv_requests_total{{job="akv-decode", {ERRORS}}}{RATE})) / {REQUESTS}'),
        ("First token p95", "s", "From arrival to first token.", quantile(0.95, "akv_ttft_seconds")),
        ("Token gap p95", "s", "Between two tokens of a stream.",
         quantile(0.95, "akv_inter_token_seconds")),
        ("Daemons away", "short", "Scrape targets that do not answer.",
         'count(up{job=~"akv-.*"} == 0) or vector(0)'),
        ("Alerts", "short", "Alerts that fire now.",
         'count(ALERTS{alertname=~"Akv.*", alertstate="firing"}) or vector(0)'),
    ], [
        ("Requests by outcome", "reqps", "client_gone and invalid are the clients' own.",
         {"{{outcome}}": f"sum by (outcome) (rate(akv_requests_total{DECODE}{RATE}))"}),
        ("First token", "s", "The objective is 5 s for 99%.", quantiles("akv_ttft_seconds")),
        ("Gap between tokens", "s", "The objective is 0.2 s for 99%.",
         quantiles("akv_inter_token_seconds")),
        ("Whole request", "s", "From arrival to end.", quantiles("akv_e2e_seconds")),
        ("Tokens", "short", "Tokens a second, all nodes.", {
            "prompt": f"sum(rate(akv_prompt_tokens_total{DECODE}{RATE}))",
            "generated": f"sum(rate(akv_generated_tokens_total{RATE}))"}),
        ("Waiting for a first token", "short", "Requests at each front door.",
         {"{{node}}": f"akv_queue_requests{DECODE}",
          "limit {{node}}": "akv_queue_limit_requests"}),
        ("Peers", "short", "As each front door sees them.",
         {"{{node}} {{role}} {{state}}": "akv_peers"}),
        ("Error budget burnt", "percentunit", "Share of requests over the objective, one hour.", {
            "first token": "akv:ttft_slow:ratio_rate1h",
            "token gap": "akv:inter_token_slow:ratio_rate1h"}),
        ("Builds", "short", "Daemons by version, instruction set and UCX.",
         {"{{version}} {{isa}} UCX {{ucx}}": "count by (version, isa, ucx) (akv_build_info)"}),
    ]),
    "prefill": ("AnchorKV / prefill", [
        ("Prompt tokens", "short", "Tokens prefilled a second.",
         f"sum(rate(akv_prompt_tokens_total{PREFILL}{RATE}))"),
        ("Waiting", "short", "Prompt tokens waiting or in work.",
         f"sum(akv_queue_tokens{PREFILL})"),
        ("Backlog", "s", "Longest time a new prompt would wait.",
         "max(akv:prefill_backlog_seconds)"),
        ("Prefill p95", "s", "First layer to first token.",
         quantile(0.95, "akv_prefill_seconds")),
        ("Compression's share", "percentunit", "Compression time over prefill time; aim 5%.",
         f"sum(rate(akv_compress_seconds_sum{RATE})) / sum(rate(akv_prefill_seconds_sum{RATE}))"),
        ("Prefill nodes up", "short", "Scrape targets that answer.",
         f"sum(up{PREFILL})"),
    ], [
        ("Queue tokens", "short", "The key figure of a node that is too slow.",
         {"{{node}}": f"akv_queue_tokens{PREFILL}",
          "limit {{node}}": f"akv_queue_limit_tokens{PREFILL}"}),
        ("Queue requests", "short", "Prompts waiting or in work.",
         {"{{node}}": f"akv_queue_requests{PREFILL}"}),
        ("Backlog", "s", "Queue tokens over the rate of 5 minutes.",
         {"{{node}}": "akv:prefill_backlog_seconds"}),
        ("Prefill time", "s", "First layer to first token.", quantiles("akv_prefill_seconds")),
        ("Prompt tokens", "short", "Tokens a second.",
         {"{{node}}": f"sum by (node) (rate(akv_prompt_tokens_total{PREFILL}{RATE}))"}),
        ("Prompts by outcome", "reqps", "Prompts ended.",
         {"{{outcome}}": f"sum by (outcome) (rate(akv_requests_total{PREFILL}{RATE}))"}),
        ("Dense K/V alive", "bytes", "At most one layer of one prompt: 4 S H D.",
         {"{{node}}": "akv_prefill_dense_kv_bytes"}),
        ("Outbox", "bytes", "States kept until their requests end.",
         {"{{node}}": "akv_outbox_bytes", "limit {{node}}": "akv_outbox_limit_bytes"}),
        ("Resident memory", "bytes", "Of the process.",
         {"{{node}}": f"akv_resident_memory_bytes{PREFILL}"}),
    ]),
    "decode": ("AnchorKV / decode", [
        ("Generated tokens", "short", "Tokens a second.",
         f"sum(rate(akv_generated_tokens_total{RATE}))"),
        ("Sessions", "short", "In every phase.", "sum(akv_sessions)"),
        ("Mean batch", "short", "Live sessions in a step.",
         f"sum(rate(akv_batch_size_sum{RATE})) / sum(rate(akv_batch_size_count{RATE}))"),
        ("Token gap p95", "s", "Between two tokens of a stream.",
         quantile(0.95, "akv_inter_token_seconds")),
        ("State memory used", "percentunit", "The fullest node.", "max(akv:state_used:ratio)"),
        ("Checksum failures", "short", "States refused before use, all time.",
         "sum(akv_checksum_failures_total)"),
    ], [
        ("Sessions", "short", "In every phase; parked ones pause for want of pages.", {
            "{{node}}": "akv_sessions", "parked {{node}}": "akv_sessions_parked",
            "limit {{node}}": "akv_sessions_limit"}),
        ("Batch size", "short", "Mean of live sessions in a step.", {"{{node}}": mean("akv_batch_size")}),
        ("Steps", "ops", "Batched forwards a second.",
         {"{{node}}": f"sum by (node) (rate(akv_batch_size_count{RATE}))"}),
        ("Gap between tokens", "s", "By node, 95% are shorter.",
         {"{{node}}": quantile(0.95, "akv_inter_token_seconds", ", node")}),
        ("Generated tokens", "short", "Tokens a second.",
         {"{{node}}": f"sum by (node) (rate(akv_generated_tokens_total{RATE}))"}),
        ("Suffix pages", "bytes", "Dense pages of generated tokens.",
         {"{{node}}": "akv_suffix_bytes"}),
        ("State memory", "bytes", "Held, and reserved for what will land.", {
            "resident {{node}}": "akv_state_resident_bytes",
            "reserved {{node}}": "akv_state_reserved_bytes"}),
        ("Peers' heartbeats", "s", "Since each peer was last heard; lost after 3 beats.",
         {"{{node}} {{peer}}": "akv_heartbeat_age_seconds"}),
        ("Resident memory", "bytes", "Of the process.",
         {"{{node}}": f"akv_resident_memory_bytes{DECODE}"}),
    ]),
    "transfer": ("AnchorKV / transfer and compression", [
        ("Transfers", "ops", "States delivered a second.",
         f'sum(rate(akv_transfers_total{{outcome="ok"}}{RATE}))'),
        ("Failed", "percentunit", "Of those not cancelled.",
         f'sum(rate(akv_transfers_total{{outcome="failed"}}{RATE})) / '
         f'sum(rate(akv_transfers_total{{outcome=~"ok|failed"}}{RATE}))'),
        ("Sent", "Bps", "Bytes of states a second.",
         f"sum(rate(akv_state_sent_bytes_total{RATE}))"),
        ("Mean ratio", "short", "Dense bytes over state bytes.",
         f"sum(rate(akv_compression_ratio_sum{RATE})) / "
         f"sum(rate(akv_compression_ratio_count{RATE}))"),
        ("Transfer p95", "s", "First record posted to last landed.",
         quantile(0.95, "akv_transfer_seconds")),
        ("Refused states", "short", "Checksum failures, all time.",
         "sum(akv_checksum_failures_total)"),
    ], [
        ("Transfers by outcome", "ops", "Cancelled: the request ended with its first token.",
         {"{{outcome}}": f"sum by (outcome) (rate(akv_transfers_total{RATE}))"}),
        ("Transfer time", "s", "Overlaps with prefill but for the last layer.",
         quantiles("akv_transfer_seconds")),
        ("Bytes of a state", "bytes", "Mean of what was delivered.",
         {"{{node}}": f"sum by (node) (rate(akv_state_sent_bytes_total{RATE})) / sum by (node) "
                      f'(rate(akv_transfers_total{{outcome="ok"}}{RATE}))'}),
        ("Sent", "Bps", "Bytes of states a second.",
         {"{{node}}": f"sum by (node) (rate(akv_state_sent_bytes_total{RATE}))"}),
        ("Compression ratio", "short", "By prompt; short prompts keep more.", {
            "p10": quantile(0.1, "akv_compression_ratio"),
            "p50": quantile(0.5, "akv_compression_ratio"),
            "p90": quantile(0.9, "akv_compression_ratio")}),
        ("Compression time", "s", "All layers of one prompt.", quantiles("akv_compress_seconds")),
        ("Theta not reached", "ops", "Prompts too short for what was asked.",
         {"{{node}}": f"sum by (node) (rate(akv_theta_unreachable_total{PREFILL}{RATE}))"}),
        ("Outbox", "bytes", "Kept for resending.", {"{{node}}": "akv_outbox_bytes"}),
        ("Checksum failures", "short", "States refused before use in 10 minutes.",
         {"{{node}}": "increase(akv_checksum_failures_total[10m])"}),
    ]),
    "capacity": ("AnchorKV / capacity", [
        ("State memory used", "percentunit", "The fullest decode node.",
         "max(akv:state_used:ratio)"),
        ("Outbox used", "percentunit", "The fullest prefill node.",
         "max(akv:outbox_used:ratio)"),
        ("Queue used", "percentunit", "The fullest daemon, by requests or tokens.",
         "max(akv:queue_used:ratio)"),
        ("Backlog", "s", "Longest time a new prompt would wait.",
         "max(akv:prefill_backlog_seconds)"),
        ("Mean state", "bytes", "Memory of a session's prompt.",
         "sum(akv_state_resident_bytes) / clamp_min(sum(akv_sessions), 1)"),
        ("Turned away", "percentunit", "Share of requests that got 429.",
         f'sum(rate(akv_requests_total{{job="akv-decode", outcome="overloaded"}}{RATE})) '
         f"/ {REQUESTS}"),
    ], [
        ("State memory", "bytes", "Resident, reserved and suffix share a limit.", {
            "used {{node}}": "akv:state_bytes:sum", "limit {{node}}": "akv_state_limit_bytes"}),
        ("Outbox", "bytes", "Least recently used states leave first.", {
            "used {{node}}": "akv_outbox_bytes", "limit {{node}}": "akv_outbox_limit_bytes"}),
        ("Queue tokens", "short", "What autoscaling of prefill follows.",
         {"{{job}}": "akv:queue_tokens:sum"}),
        ("State bytes", "bytes", "What autoscaling of decode follows.",
         {"{{job}}": "akv:state_bytes:total"}),
        ("Unexplained memory", "bytes", "Resident memory without states; should stand still.",
         {"{{node}}": "akv:unexplained_memory_bytes"}),
        ("Parked sessions", "short", "Streams that pause for want of pages.",
         {"{{node}}": "akv_sessions_parked"}),
        ("Decode work per prefill work", "short", "Generated over prompt tokens.",
         {"ratio": f"sum(rate(akv_generated_tokens_total{RATE})) / "
                   f"sum(rate(akv_prompt_tokens_total{DECODE}{RATE}))"}),
        ("Daemons", "short", "Scrape targets that answer.",
         {"{{job}}": 'sum by (job) (up{job=~"akv-.*"})'}),
        ("Scrape", "s", "What a scrape takes.",
         {"{{instance}}": 'scrape_duration_seconds{job=~"akv-.*"}'}),
    ]),
}


def target(index, legend, expression):
    return {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression,
            "legendFormat": legend}


def panel(number, kind, title, unit, text, position, targets):
    return {"id": number, "type": kind, "title": title, "description": text,
            "datasource": DATASOURCE, "gridPos": position,
            "fieldConfig": {"defaults": {"unit": unit, "min": 0, "noValue": "no traffic"},
                            "overrides": []},
            "targets": [target(i, *entry) for i, entry in enumerate(targets.items())]}


def dashboard(name, title, stats, panels):
    built = []
    for i, (head, unit, text, expression) in enumerate(stats):
        built.append(panel(len(built) + 1, "stat", head, unit, text,
                           {"x": 4 * i, "y": 0, "w": 4, "h": 4}, {"": expression}))
    for i, (head, unit, text, targets) in enumerate(panels):
        built.append(panel(len(built) + 1, "timeseries", head, unit, text,
                           {"x": 8 * (i % 3), "y": 4 + 8 * (i // 3), "w": 8, "h": 8}, targets))
    return {"uid": f"anchorkv-{name}", "title": title, "tags": ["anchorkv"], "editable": False,
            "schemaVersion": 38, "version": 1, "refresh": "10s", "timezone": "utc",
            "time": {"from": "now-1h", "to": "now"},
            "links": [{"type": "dashboards", "tags": ["anchorkv"], "title": "AnchorKV",
                       "asDropdown": True, "keepTime": True}],
            "templating": {"list": [{"name": "datasource", "type": "datasource",
                                     "query": "prometheus", "label": "Data source"}]},
            "panels": built}


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "dashboards"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, stats, panels) in DASHBOARDS.items():
        text = json.dumps(dashboard(name, title, stats, panels), indent=1) + "\n"
        (folder / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
