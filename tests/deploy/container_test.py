#!/usr/bin/env python3
"""Container files: hadolint, what they copy, who they run as, and the list of contents."""
import pathlib
import re
import sys
import unittest

import support

CONTAINER = support.DEPLOY / "container"
FILES = sorted(CONTAINER.glob("Containerfile.c*[!e]"))
HADOLINT = pathlib.Path(sys.executable).parent / "hadolint"


class Containerfiles(unittest.TestCase):
    def test_there_are_two(self):
        self.assertEqual([path.name for path in FILES], ["Containerfile.cpu", "Containerfile.cuda"])

    @unittest.skipUnless(HADOLINT.exists(), "no hadolint (deploy/install-deps.sh)")
    def test_hadolint_finds_nothing(self):
        for path in FILES:
            done = support.run(HADOLINT, path)
            self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_what_is_copied_from_the_tree_exists(self):
        copies = [word for path in FILES
                  for line in re.findall(r"^COPY (?!--from)(.*)$", path.read_text(), re.M)
                  for word in line.split()[:-1]]
        self.assertIn("deploy/packages-build.txt", copies)
        for word in copies:
            self.assertTrue((support.ROOT / word).exists(), word)

    def test_last_stage_runs_as_the_user_of_the_manifests(self):
        manifest = (support.DEPLOY / "k8s/base/decode.yaml").read_text()
        user = re.search(r"runAsUser: (\d+)", manifest)[1]
        for path in FILES:
            last = path.read_text().rsplit("\nFROM ", 1)[1]
            self.assertEqual(re.findall(r"^USER (\S+)$", last, re.M)[-1], f"{user}:{user}")

    def test_command_is_where_the_package_lays_it(self):
        manifest = (support.DEPLOY / "k8s/base/decode.yaml").read_text()
        self.assertIn("command: [/usr/bin/decode_node]", manifest)
        self.assertIn('CMD ["/usr/bin/decode_node"', FILES[0].read_text())


class Contents(unittest.TestCase):
    def test_every_installed_package_is_listed_once(self):
        support.need("dpkg-query")
        done = support.run("sh", CONTAINER / "spdx.sh")
        self.assertEqual(done.returncode, 0, done.stderr)
        head, *entries = done.stdout.split("\nPackageName: ")
        self.assertTrue(head.startswith("SPDXVersion: SPDX-2.3\n"))
        names = [entry.splitlines()[0] for entry in entries]
        self.assertIn("libc6", names)
        installed = support.run("dpkg-query", "-W", "-f=${db:Status-Status}\n").stdout.split()
        self.assertEqual(len(names), installed.count("installed"))
        for entry in entries:
            for field in ("SPDXID", "PackageVersion", "PackageDownloadLocation",
                          "PackageLicenseDeclared", "Relationship"):
                self.assertRegex(entry, rf"(?m)^{field}: \S")


if __name__ == "__main__":
    support.main()
