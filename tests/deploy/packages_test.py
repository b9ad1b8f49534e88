#!/usr/bin/env python3
"""Units, their configuration, and the .deb: checked by systemd's own tools, by lintian, and by
running what was unpacked."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import support

SYSTEMD = support.DEPLOY / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
MAX_EXPOSURE = 2.5


def tool(name):
    return unittest.skipUnless(shutil.which(name), f"no {name} here")


def example(name):
    """{variable: value} of an environment file."""
    lines = (SYSTEMD / f"{name}.env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


class Units(unittest.TestCase):
    def test_there_is_one_a_daemon(self):
        self.assertEqual([unit.stem for unit in UNITS], ["anchorkv-decode", "anchorkv-prefill"])

    @tool("systemd-analyze")
    def test_verify_finds_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            for unit in UNITS:
                # Verify wants programs and manual pages to be installed.
                text = re.sub(r"/usr/bin/(\w+_node)", lambda m: str(support.binary(m[1])),
                              unit.read_text())
                copy = pathlib.Path(folder) / unit.name
                copy.write_text(re.sub(r"man:\S+ ", "", text))
                done = support.run("systemd-analyze", "verify", copy)
                lines = [line for line in (done.stdout + done.stderr).splitlines()
                         if unit.name in line]
                self.assertEqual((done.returncode, lines), (0, []))

    @tool("systemd-analyze")
    def test_exposure_is_small(self):
        for unit in UNITS:
            done = support.run("systemd-analyze", "security", "--offline=true", unit)
            level = float(re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)[1])
            print(f"{unit.name}: exposure {level}")
            self.assertLessEqual(level, MAX_EXPOSURE)

    @tool("systemd-sysusers")
    def test_users_and_folders_are_made(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "etc").mkdir()
            done = support.run("systemd-sysusers", f"--root={root}",
                               SYSTEMD / "anchorkv.sysusers")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex((root / "etc/passwd").read_text(), r"(?m)^anchorkv:.*nologin$")
            if os.geteuid() != 0:
                return
            done = support.run("systemd-tmpfiles", "--create", f"--root={root}",
                               SYSTEMD / "anchorkv.tmpfiles")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((root / "etc/anchorkv").stat().st_mode & 0o777, 0o750)
            self.assertTrue((root / "var/lib/anchorkv/models").is_dir())

    def test_examples_configure_their_daemon(self):
        for program in support.PROGRAMS:
            role = program.removesuffix("_node")
            values = {**example("common"), **example(role)}
            for key in values:
                flag = "--" + key.removeprefix("AKV_").lower().replace("_", "-")
                self.assertIn(flag, support.flags(program), key)
            # The one file that is read for this; it lies beside the others once installed.
            self.assertEqual(values["AKV_CONFIG"], "/etc/anchorkv/daemon.json")
            done = support.run(support.binary(program), "--dump-config", env={
                "PATH": os.environ["PATH"], **values,
                "AKV_CONFIG": str(SYSTEMD / "daemon.json.example")})
            self.assertEqual(done.returncode, 0, done.stderr)
            shown = json.loads(done.stdout)
            self.assertEqual(shown["log-level"], "info")
            self.assertEqual(shown["metrics"], values["AKV_METRICS"])

    def test_scraped_ports_are_those_of_the_examples(self):
        for role in ("prefill", "decode"):
            text = (support.DEPLOY / f"prometheus/targets/{role}.yml").read_text()
            self.assertIn(f'"{example(role)["AKV_METRICS"]}"', text)


@tool("cpack")
@tool("dpkg-deb")
class Deb(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (support.BUILD / "deploy/changelog.gz").exists():
            raise unittest.SkipTest("not built with the wheel's UCX, or only in part")
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="akv-deb."))
        done = support.run("cpack", "-G", "DEB", "-B", cls.folder / "stage",
                           "-D", f"CPACK_OUTPUT_FILE_PREFIX={cls.folder}/out",
                           "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", cwd=support.BUILD)
        assert done.returncode == 0, done.stdout + done.stderr
        (cls.deb,) = (cls.folder / "out").glob("*.deb")
        cls.root = cls.folder / "root"
        subprocess.run(["dpkg-deb", "-x", cls.deb, cls.root], check=True, timeout=60)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_holds_what_is_promised(self):
        for path in ["bin/prefill_node", "bin/decode_node", "lib/anchorkv/lib/libucp.so.0",
                     "lib/anchorkv/etc/ucx/ucx.conf", "lib/systemd/system/anchorkv-decode.service",
                     "lib/systemd/system/anchorkv-prefill.service", "lib/sysusers.d/anchorkv.conf",
                     "lib/tmpfiles.d/anchorkv.conf", "share/man/man1/decode_node.1.gz",
                     "share/man/man1/prefill_node.1.gz", "share/doc/anchorkv/copyright",
                     "share/doc/anchorkv/examples/common.env.example", "share/anchorkv/lib.sh",
                     "share/doc/anchorkv/examples/daemon.json.example",
                     "share/doc/anchorkv/examples/prometheus/alerts.yml"]:
            self.assertTrue((self.root / "usr" / path).exists(), path)

    def test_keys_are_made_without_the_tree(self):
        done = support.run(self.root / "usr/share/anchorkv/make-keys.sh", self.folder / "keys")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({path.name for path in (self.folder / "keys").iterdir()},
                         {"curve.key", "api-keys"})

    def test_daemons_run_and_find_the_ucx_inside(self):
        for program in support.PROGRAMS:
            path = self.root / "usr/bin" / program
            self.assertIn(program, support.run(path, "--version").stdout)
            linked = support.run("ldd", path).stdout
            self.assertIn(str(self.root / "usr"), re.search(r"libucp\.so\.0 => (\S+)", linked)[1])
            self.assertNotIn("not found", linked)

    @tool("readelf")
    def test_depends_names_every_linked_package(self):
        depends = support.run("dpkg-deb", "-f", self.deb, "Depends").stdout
        names = set(re.findall(r"([a-z][\w.+-]*)(?: \([^)]*\))?(?:,|$)", depends.strip()))
        for program in support.PROGRAMS:
            path = self.root / "usr/bin" / program
            needed = re.findall(r"\(NEEDED\).*\[(.*)\]", support.run("readelf", "-d", path).stdout)
            where = dict(re.findall(r"(\S+) => (\S+)", support.run("ldd", path).stdout))
            for library in needed:
                file = where.get(library, "")
                if not file or str(self.root) in file:
                    continue
                found = support.run("dpkg", "-S", pathlib.Path(file).resolve()).stdout \
                    or support.run("dpkg", "-S", f"*/{library}").stdout
                packages = set(re.findall(r"^([\w.+-]+)(?::\w+)?:", found, re.M))
                self.assertTrue(packages & names, f"{library}: {packages} not in {names}")

    @tool("lintian")
    def test_lintian_has_no_errors(self):
        done = support.run("lintian", "--no-cfg", "--fail-on", "error", self.deb)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @tool("man")
    def test_manual_pages_name_every_flag_without_a_warning(self):
        for program in support.PROGRAMS:
            page = self.root / f"usr/share/man/man1/{program}.1.gz"
            done = support.run("man", "--warnings", "-l", page,
                               env={**os.environ, "MANWIDTH": "200", "MANPAGER": "cat"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            text = re.sub(r".\x08", "", done.stdout)
            for flag in support.flags(program):
                self.assertIn(flag, text)


if __name__ == "__main__":
    for name in support.PROGRAMS:
        support.binary(name)
    support.main()
