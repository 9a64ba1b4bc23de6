#include "base/printable.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace smoe {
namespace {

// The tables of RFC 3629, sections 3 and 4: first and last of each length, and their neighbours.
TEST(Printable, ShowsBytesThatAreNoUtf8) {
  for (const char* text : {"\xc2\xa0", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(Printable(text), text);
  }
  EXPECT_EQ(Printable("a\x80z"), "a\\x80z");
  EXPECT_EQ(Printable("\xc1\xbf"), "\\xc1\\xbf");                    // a long form
  EXPECT_EQ(Printable("\xe0\x9f\xbf"), "\\xe0\\x9f\\xbf");           // another
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(Printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(Printable("caf\xe9.smoe"), "caf\\xe9.smoe");  // Latin-1
  EXPECT_EQ(Printable("\xe2\x82"), "\\xe2\\x82");         // cut off
  EXPECT_EQ(Printable("\xe2\x82\xc3\xa9"), "\\xe2\\x82\xc3\xa9");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b"
            "2J");  // CSI in one character
}

TEST(Printable, KeepsTextAndDisarmsTerminalEscapes) {
  EXPECT_EQ(Printable("a\x1b[2Jb\x07\n\t"), "a\\x1b[2Jb\\x07\\n\\t");
  EXPECT_EQ(Printable("\xc3\xa9"), "\xc3\xa9");
}

TEST(Printable, LogLinesAreMadeSafe) {
  testing::internal::CaptureStderr();
  LogWarning("caf\xe9\x1b[2J: gone");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "smoe: warning: caf\\xe9\\x1b[2J: gone\n");
}

}  // namespace
}  // namespace smoe
