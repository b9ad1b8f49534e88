#include "transport/ucx/wire.h"

#include <gtest/gtest.h>

#include <random>

namespace akv::transport::wire {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Message sample(Type type) {
  Message m;
  m.type = type;
  m.key = {{0x1122334455667788, 0x99aabbccddeeff00}, {3, 4}, 5};
  m.records = 31;
  m.code = 7;
  m.text = "because";
  return m;
}

TEST(WireTest, EveryTypeComesBackAsItWasSent) {
  for (int t = 1; t <= static_cast<int>(Type::kLastType); ++t) {
    const Message sent = sample(static_cast<Type>(t));
    auto got = decode(bytes_of(encode(sent)));
    ASSERT_TRUE(got.ok()) << t;
    EXPECT_EQ(got->type, sent.type);
    const bool keyed = t >= static_cast<int>(Type::kOpen) && t <= static_cast<int>(Type::kResult);
    if (keyed) {
      EXPECT_EQ(got->key.transfer, sent.key.transfer);
      EXPECT_EQ(got->key.attempt, 5u);
      EXPECT_EQ(got->key.token, sent.type == Type::kResult ? Id128{} : sent.key.token);
    }
    if (sent.type == Type::kFinish) {
      EXPECT_EQ(got->records, 31u);
    }
    if (sent.type == Type::kAbort || sent.type == Type::kResult) {
      EXPECT_EQ(got->code, 7);
      EXPECT_EQ(got->text, "because");
    }
  }
}

TEST(WireTest, TruncatedOrLongerMessagesAreRefused) {
  for (int t = 1; t <= static_cast<int>(Type::kLastType); ++t) {
    const std::string whole = encode(sample(static_cast<Type>(t)));
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(decode(bytes_of(whole.substr(0, size))).ok()) << t << " " << size;
    }
    EXPECT_FALSE(decode(bytes_of(whole + "x")).ok());
  }
  EXPECT_FALSE(decode(bytes_of(std::string(kControlBytesMax + 1, 'x'))).ok());
}

TEST(WireTest, TheWorkedExampleOfTheReadme) {
  Message m;
  m.type = Type::kHello;
  m.text = "1.22.0";
  const std::string bytes = encode(m);
  EXPECT_EQ(bytes, std::string("\x41\x4b\x01\x01\x06\x00"
                               "1.22.0",
                               12));
  RecordHeader header;
  header.key = {{1, 2}, {3, 4}, 5};
  header.record = 6;
  header.bytes = 7;
  const std::string record = encode(header);
  ASSERT_EQ(record.size(), kRecordHeaderBytes);
  EXPECT_EQ(record.substr(0, 8), std::string("\x41\x4b\x01\x40\x06\0\0\0", 8));
  EXPECT_EQ(record[8], 1);
  EXPECT_EQ(record[16], 2);
  EXPECT_EQ(record[40], 5);
  EXPECT_EQ(record[48], 7);
  auto back = decode_record(bytes_of(record));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->key.token, (Id128{3, 4}));
  EXPECT_EQ(back->record, 6u);
  EXPECT_EQ(back->bytes, 7u);
  EXPECT_FALSE(back->on_device);
  header.on_device = true;
  const std::string from_device = encode(header);
  EXPECT_EQ(from_device[44], 1);
  EXPECT_TRUE(decode_record(bytes_of(from_device))->on_device);
}

TEST(WireTest, OtherVersionsAreMismatchButTheirHelloIsUnderstood) {
  Message m = sample(Type::kOpen);
  m.protocol = 9;
  EXPECT_EQ(decode(bytes_of(encode(m))).error().code, Code::kMismatch);
  m.type = Type::kHello;
  auto hello = decode(bytes_of(encode(m)));
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(hello->protocol, 9);
  std::string record = encode(RecordHeader{});
  record[2] = 9;
  EXPECT_EQ(decode_record(bytes_of(record)).error().code, Code::kMismatch);
}

TEST(WireTest, RecordHeadersAreChecked) {
  const std::string good = encode(RecordHeader{});
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_record(bytes_of(good.substr(0, size))).ok());
  }
  EXPECT_FALSE(decode_record(bytes_of(good + "x")).ok());
  for (size_t at : {0, 1, 3, 44}) {  // magic, type, reserved
    std::string bad = good;
    bad[at] = '\x55';
    EXPECT_FALSE(decode_record(bytes_of(bad)).ok()) << at;
  }
}

TEST(WireTest, TextsAreCutAndPrintable) {
  Message m = sample(Type::kResult);
  m.text = std::string(5000, 'a') + "\n";
  auto got = decode(bytes_of(encode(m)));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->text.size(), kTextMax);
  m.text = "a\nb\x1b[0m";
  EXPECT_EQ(decode(bytes_of(encode(m)))->text, "a?b?[0m");
}

TEST(WireTest, UnknownCodesAreUnavailable) {
  EXPECT_EQ(to_error(999, "x").code, Code::kUnavailable);
  EXPECT_EQ(to_error(7, "x").code, Code::kDataLoss);
  EXPECT_FALSE(to_error(7, "").message.empty());
}

TEST(WireTest, RandomBytesNeverDecodeOutOfBounds) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 90, '\0');
    for (char& c : text) c = static_cast<char>(random());
    if (text.size() > 4 && i % 2 == 0) {  // past the prefix
      text[0] = 'A', text[1] = 'K', text[2] = 1;
      text[3] = static_cast<char>(random() % 10);
    }
    auto message = decode(bytes_of(text));
    if (message.ok()) {
      EXPECT_LE(message->text.size(), kTextMax);
    }
    (void)decode_record(bytes_of(text));
  }
}

}  // namespace
}  // namespace akv::transport::wire
