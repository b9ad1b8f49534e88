"""Each rule on small made-up trees: what it must find, and what it must let pass."""

import unittest

import figures
import layers
import third_party


def faults(files):
    return layers.check(files)


class Layers(unittest.TestCase):
    def test_what_the_design_allows(self):
        self.assertEqual(faults({
            "proto/state.h": "#include <cstdint>\n",
            "kernels/types.h": "",
            "common/base/result.h": "",
            "common/log/log.h": '#include "common/base/result.h"\n',
            "common/kv/codec.h": '#include "proto/state.h"\n#include "kernels/types.h"\n',
            "transport/transport.h": '#include "proto/state.h"\n',
            "prefill_node/daemon.h": '#include "transport/transport.h"\n',
            "decode_node/local.cc": '#include "prefill_node/daemon.h"\n',
            "common/net/loop.cc": "#include <zmq.hpp>\n",
            "tests/net/loop_test.cc": '#include "common/kv/codec.h"\n#include <zmq.hpp>\n',
        }), [])

    def test_upward_and_sideways_includes(self):
        for path, target in [("proto/a.h", "common/base/b.h"), ("kernels/a.h", "proto/b.h"),
                             ("common/log/a.h", "common/config/b.h"),
                             ("common/config/a.h", "common/metrics/b.h"),
                             ("common/kv/a.h", "common/model/b.h"),
                             ("transport/a.h", "common/kv/b.h"),
                             ("prefill_node/a.cc", "decode_node/b.h"),
                             ("decode_node/other.cc", "prefill_node/daemon.h"),
                             ("common/base/a.cc", "tests/b.h")]:
            with self.subTest(path=path, target=target):
                self.assertEqual(len(faults({path: f'#include "{target}"\n', target: ""})), 1)

    def test_libraries_outside_their_folder(self):
        for path, header in [("transport/a.cc", "ucp/api/ucp.h"), ("common/model/a.cc", "dnnl.hpp"),
                             ("kernels/a.cc", "oneapi/dnnl/dnnl.hpp"), ("kernels/a.cc", "hwy/highway.h"),
                             ("decode_node/a.cc", "boost/asio.hpp"), ("common/app/a.cc", "zmq.h"),
                             ("common/log/a.cc", "nlohmann/json.hpp"),
                             ("prefill_node/a.cc", "prometheus/counter.h"),
                             ("common/base/a.cc", "gtest/gtest.h")]:
            with self.subTest(path=path, header=header):
                self.assertEqual(len(faults({path: f"#include <{header}>\n"})), 1)

    def test_a_library_in_a_header_is_private_to_its_folder(self):
        files = {"common/net/socket.h": "#include <zmq.hpp>\n",
                 "common/net/loop.cc": '#include "common/net/socket.h"\n'}
        self.assertEqual(faults(files), [])
        files["decode_node/a.cc"] = '#include "common/net/socket.h"\n'
        self.assertEqual(len(faults(files)), 1)

    def test_a_cycle_and_a_missing_file(self):
        found = faults({"proto/a.h": '#include "proto/b.h"\n', "proto/b.h": '#include "proto/a.h"\n'})
        self.assertEqual(len(found), 1)
        self.assertIn("cycle", found[0])
        self.assertIn("not in the tree", faults({"proto/a.h": '#include "gone.h"\n'})[0])


class Figures(unittest.TestCase):
    def test_a_good_file(self):
        self.assertEqual(figures.check({"proto/a.h": "#pragma once\n", "proto/README.md": "# p\n"}), [])

    def test_each_limit(self):
        for text in ["#pragma once\n" + "\n" * figures.MAX_FILE_LINES, "#pragma once\n// " + "x" * 98 + "\n",
                     "#pragma once \n", "#pragma once\n\tint a;\n", "// no guard\n", "#pragma once",
                     "#pragma once\n// TO" + "DO later\n"]:
            with self.subTest(text=text[:40]):
                self.assertEqual(len(figures.check({"proto/a.h": text, "proto/README.md": "#\n"})), 1)

    def test_a_folder_without_its_page(self):
        self.assertEqual(figures.check({"proto/a.cc": "\n"}), ["proto: no README.md"])


class ThirdParty(unittest.TestCase):
    def test_unnamed_libraries(self):
        page = "| ZeroMQ | `libzmq.so.5` |\n"
        self.assertEqual(third_party.check(page, {"libzmq.so.5"}), [])
        self.assertEqual(len(third_party.check(page, {"libzmq.so.5", "libnew.so.1"})), 1)

    def test_ldd_of_a_real_binary(self):
        self.assertIn("libc.so.6", third_party.linked_libraries(["/bin/sh"]))


def run():
    suite = unittest.defaultTestLoader.loadTestsFromName(__name__)
    return 0 if unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful() else 1
