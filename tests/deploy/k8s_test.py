#!/usr/bin/env python3
"""The Kubernetes manifests: rendered by kubectl where it is there, held to the schemas of several
releases, and to what the binaries really take, bind and answer."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import support

yaml = support.need_module("yaml")
sys.path.insert(0, str(support.ROOT / "tests/integration"))
import harness as h  # noqa: E402

K8S = support.DEPLOY / "k8s"
OVERLAYS = sorted(path.parent for path in K8S.glob("overlays/*/kustomization.yaml"))
VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
# Custom resources are not in the schemas of Kubernetes.
CUSTOM = {"PodMonitor", "PrometheusRule", "InferencePool"}
WORKLOADS = ("prefill", "decode", "frontdoor")


def kubectl_is_new_enough():
    """Debian's kubectl 1.20 does not know `labels`."""
    if shutil.which("kubectl") is None:
        return False
    done = support.run("kubectl", "version", "--client")
    match = re.search(r"Kustomize Version: v(\d+)", done.stdout)
    return match is not None and int(match[1]) >= 5


def documents(path):
    return [doc for doc in yaml.safe_load_all(path.read_text()) if doc]


def render(overlay):
    done = support.run("kubectl", "kustomize", overlay)
    assert done.returncode == 0, done.stderr
    return [doc for doc in yaml.safe_load_all(done.stdout) if doc]


def base_deployments():
    return {name: documents(K8S / f"base/{name}.yaml")[0] for name in WORKLOADS}


def container(deployment):
    return deployment["spec"]["template"]["spec"]["containers"][0]


def arguments(box):
    """{--flag: value} of a container; the last of a repeated flag counts, as for the daemons."""
    pairs = (argument.split("=", 1) for argument in box["args"])
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs}


class References(unittest.TestCase):
    def test_every_file_of_a_kustomization_exists(self):
        seen = 0
        for path in K8S.rglob("kustomization.yaml"):
            (doc,) = documents(path)
            files = doc.get("resources", []) + doc.get("components", [])
            files += [patch["path"] for patch in doc.get("patches", []) if "path" in patch]
            for generator in doc.get("configMapGenerator", []):
                files += [name.split("=")[-1] for name in generator.get("files", [])]
            for name in files:
                target = (path.parent / name).resolve()
                self.assertTrue(target.is_file() or (target / "kustomization.yaml").is_file(),
                                f"{path}: {name}")
                seen += 1
        self.assertGreater(seen, 20)

    def test_prometheusrule_is_what_the_script_writes(self):
        with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
            done = support.run(sys.executable, K8S / "make_prometheusrule.py", file.name)
            self.assertEqual(done.returncode, 0, done.stderr)
            written = pathlib.Path(file.name).read_text()
        path = K8S / "overlays/monitoring/prometheusrule.yaml"
        self.assertEqual(written, path.read_text())
        groups = [group for name in ("recording", "alerts") for group in
                  documents(support.DEPLOY / f"prometheus/{name}.yml")[0]["groups"]]
        self.assertEqual(documents(path)[0]["spec"]["groups"], groups)


class Binaries(unittest.TestCase):
    """What a manifest names exists in the binary that it starts."""

    def boxes(self):
        for name, deployment in base_deployments().items():
            yield name, container(deployment), deployment
        (patch,) = documents(K8S / "overlays/single-node/local.yaml")
        box = dict(container(base_deployments()["frontdoor"]))
        for step in patch:
            box[step["path"].rsplit("/", 1)[1]] = step["value"]
        yield "single-node", box, base_deployments()["frontdoor"]

    def test_flags_are_taken_with_their_values(self):
        for name, box, _ in self.boxes():
            program = pathlib.PurePath(box["command"][0]).name
            self.assertIn(program, support.PROGRAMS)
            self.assertLessEqual(set(arguments(box)), support.flags(program), name)
            values = [argument.replace("$(POD_IP)", "10.1.2.3") for argument in box["args"]]
            done = support.run(support.binary(program), *values, "--dump-config")
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")

    def test_environment_is_a_flag_of_ours_or_a_setting_of_ucx(self):
        for name, box, _ in self.boxes():
            program = pathlib.PurePath(box["command"][0]).name
            for variable in box["env"]:
                key = variable["name"]
                if key.startswith("AKV_"):
                    flag = "--" + key.removeprefix("AKV_").lower().replace("_", "-")
                    self.assertIn(flag, support.flags(program), name)
                else:
                    self.assertIn(key, ("POD_IP", "UCX_TCP_PORT_RANGE"), name)

    def test_ports_are_those_that_the_flags_bind(self):
        for name, box, _ in self.boxes():
            bound = {flag.removeprefix("--"): int(value.rsplit(":", 1)[1])
                     for flag, value in arguments(box).items()
                     if flag in ("--control", "--state", "--metrics", "--http")}
            named = {port["name"]: port["containerPort"] for port in box["ports"]}
            self.assertEqual(named, {key: port for key, port in bound.items() if port}, name)

    def test_peers_are_services_with_that_port(self):
        services = {doc["metadata"]["name"]: doc for name in WORKLOADS
                    for doc in documents(K8S / f"base/{name}.yaml") if doc["kind"] == "Service"}
        for name, deployment in base_deployments().items():
            for flag in ("--prefill-dns", "--decode-dns"):
                if flag not in arguments(container(deployment)):
                    continue
                service, port = arguments(container(deployment))[flag].split(":")
                spec = services[service]["spec"]
                self.assertEqual(spec["clusterIP"], "None")
                self.assertTrue(spec["publishNotReadyAddresses"])
                self.assertIn(int(port), [entry["port"] for entry in spec["ports"]])

    def test_drain_fits_into_the_grace_period(self):
        for name, box, deployment in self.boxes():
            pause = box["lifecycle"]["preStop"]["sleep"]["seconds"]
            drain = int(arguments(box)["--drain-timeout-ms"]) / 1000
            grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
            self.assertLess(pause + drain + 5, grace, name)

    def test_metrics_of_autoscaling_are_exported(self):
        names = set()
        for path in ("autoscale/hpa.yaml", "autoscale/adapter-rules.yaml",
                     "inference-pool/epp.yaml"):
            names |= support.metrics_in((K8S / "overlays" / path).read_text())
        self.assertEqual(names, {"akv_queue_tokens", "akv_state_resident_bytes",
                                 "akv_queue_requests", "akv_sessions", "akv_state_used_ratio"})
        self.assertLessEqual(names, support.exported_metrics())

    def test_probed_paths_are_answered(self):
        if not h.MODEL.exists():
            self.skipTest("no model")
        paths = {probe["httpGet"]["path"] for deployment in base_deployments().values()
                 for key, probe in container(deployment).items() if key.endswith("Probe")}
        paths |= {endpoint["path"] for endpoint in documents(
            K8S / "overlays/monitoring/podmonitor.yaml")[0]["spec"]["podMetricsEndpoints"]}
        self.assertEqual(paths, {"/health/live", "/health/ready", "/metrics"})
        for daemon in (h.prefill(), h.decode("--local")):
            try:
                for path in paths:
                    status, body = h.get(daemon, path, "metrics")
                    self.assertEqual(status, 200, (daemon.program, path, body))
            finally:
                daemon.close()


class Policies(unittest.TestCase):
    def test_only_ports_in_use_are_open(self):
        bound = {7300}  # UCX_TCP_PORT_RANGE begins here
        for deployment in base_deployments().values():
            bound |= {port["containerPort"] for port in container(deployment)["ports"]}
        opened = {rule["port"] for policy in documents(K8S / "base/networkpolicy.yaml")
                  for side in ("ingress", "egress") for entry in policy["spec"].get(side, [])
                  for rule in entry["ports"]}
        self.assertEqual(opened - {53}, bound)

    def test_pods_are_locked_down(self):
        for name, deployment in base_deployments().items():
            pod = deployment["spec"]["template"]["spec"]
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertEqual(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
            self.assertFalse(pod["automountServiceAccountToken"])
            for box in pod["containers"] + pod["initContainers"]:
                self.assertTrue(box["securityContext"]["readOnlyRootFilesystem"], name)
                self.assertFalse(box["securityContext"]["allowPrivilegeEscalation"], name)
                self.assertEqual(box["securityContext"]["capabilities"], {"drop": ["ALL"]}, name)
                self.assertEqual(set(box["resources"]), {"requests", "limits"}, name)


@unittest.skipUnless(kubectl_is_new_enough(), "no kubectl with Kustomize 5")
class Rendered(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.overlays = {path.name: render(path) for path in OVERLAYS}

    def test_every_overlay_renders(self):
        self.assertEqual(set(self.overlays), {"autoscale", "cpu", "gpu", "gpu-rdma",
                                              "inference-pool", "monitoring", "single-node"})
        kinds = {name: sorted(doc["metadata"]["name"] for doc in docs
                              if doc["kind"] == "Deployment")
                 for name, docs in self.overlays.items()}
        self.assertEqual(kinds["cpu"], ["decode", "frontdoor", "prefill"])
        self.assertEqual(kinds["single-node"], ["frontdoor"])
        self.assertEqual(kinds["monitoring"], [])

    def test_gpu_and_autoscale_say_what_they_are_for(self):
        for doc in self.overlays["gpu-rdma"]:
            if doc["kind"] == "Deployment" and doc["metadata"]["name"] != "frontdoor":
                box = container(doc)
                self.assertEqual(box["resources"]["limits"]["nvidia.com/gpu"], "1")
                self.assertEqual(box["resources"]["limits"]["rdma/hca"], "1")
                self.assertEqual(arguments(box)["--ucx-tls"], "rc,tcp")
                self.assertIn("anchorkv-cuda", box["image"])
        for doc in self.overlays["autoscale"]:
            if doc["kind"] == "Deployment" and doc["metadata"]["name"] != "frontdoor":
                self.assertNotIn("replicas", doc["spec"])

    def test_objects_are_valid_in_every_release(self):
        validate = support.need_module("kubernetes_validate")
        # Most objects are the same in several overlays.
        different = {json.dumps(doc, sort_keys=True): doc for docs in self.overlays.values()
                     for doc in docs if doc["kind"] not in CUSTOM}
        self.assertGreater(len(different), 30)
        for doc in different.values():
            for version in VERSIONS:
                with self.subTest(kind=doc["kind"], name=doc["metadata"]["name"],
                                  version=version):
                    validate.validate(doc, version, strict=True)


    @unittest.skipUnless(shutil.which("checkov"), "no checkov")
    def test_checkov_fails_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, docs in self.overlays.items():
                (pathlib.Path(folder) / f"{name}.yaml").write_text(yaml.safe_dump_all(docs))
            done = support.run("checkov", "--config-file", K8S / "checkov.yaml", "-d", folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        passed = re.search(r"Passed checks: (\d+), Failed checks: 0", done.stdout)
        print(f"checkov: {passed[0]}")
        self.assertGreater(int(passed[1]), 1000)


class Keys(unittest.TestCase):
    """make-keys.sh makes what the daemons take, once, readable by its owner alone."""

    def test_a_pair_and_api_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            done = support.run(support.DEPLOY / "make-keys.sh", folder, "--api-keys", "2",
                               "--secret")
            self.assertEqual(done.returncode, 0, done.stderr)
            (secret,) = yaml.safe_load_all(done.stdout)
            self.assertEqual(secret["metadata"]["name"], "anchorkv-keys")
            self.assertEqual(set(secret["data"]), {"curve.key", "api-keys"})
            curve, keys = pathlib.Path(folder) / "curve.key", pathlib.Path(folder) / "api-keys"
            self.assertEqual(curve.stat().st_mode & 0o077, 0)
            self.assertEqual(len(set(keys.read_text().split())), 2)
            before = curve.read_bytes()
            again = support.run(support.DEPLOY / "make-keys.sh", folder)
            self.assertEqual(again.returncode, 0)
            self.assertEqual(curve.read_bytes(), before)
            if h.MODEL.exists():
                self.serve(curve, keys)

    def serve(self, curve, keys):
        prefill = h.prefill("--curve-key", curve)
        decode = h.decode("--curve-key", curve, "--api-key-file", keys, "--prefill",
                          prefill.ready["control"])
        try:
            h.wait_ready(decode)
            body = h.completion("The capital of France is", max_tokens=2)
            self.assertEqual(h.post(decode, "/v1/completions", body)[0], 401)
            for key in keys.read_text().split():
                status, _ = h.post(decode, "/v1/completions", body,
                                   {"Authorization": f"Bearer {key}"})
                self.assertEqual(status, 200)
        finally:
            decode.close()
            prefill.close()

    def test_bad_options_change_nothing(self):
        for options in (["--api-keys", "0", "x"], ["--nonsense"], []):
            done = subprocess.run([support.DEPLOY / "make-keys.sh", *options],
                                  capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 2, options)


if __name__ == "__main__":
    for program in support.PROGRAMS:
        support.binary(program)
    support.main()
