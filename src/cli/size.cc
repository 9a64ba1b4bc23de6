#include "cli/size.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <optional>
#include <string_view>

#include "base/bytes.h"

namespace smoe::cli {

namespace {

constexpr size_t kQuotedMax = 60;
constexpr char kExpected[] = "expected a size such as 4GiB, 1.5GB, 512M or a number of bytes";

// Bytes of a unit in small letters; nothing for one that is none.
std::optional<uint64_t> UnitBytes(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  constexpr std::string_view kUnits = "kmgtp";
  const size_t power = kUnits.find(unit[0]);
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) return {};
  uint64_t bytes = 1;
  for (size_t i = 0; i <= power; ++i) bytes *= rest == "b" ? uint64_t{1000} : 1024;
  return bytes;
}

std::string_view TakeDigits(std::string_view* text) {
  const size_t count = std::min(text->find_first_not_of("0123456789"), text->size());
  const std::string_view digits = text->substr(0, count);
  text->remove_prefix(count);
  return digits;
}

// The number that digits are, times `unit`; nothing above 2^64 - 1.
std::optional<uint64_t> Scaled(std::string_view digits, uint64_t unit) {
  uint64_t value = 0;
  for (const char digit : digits) {
    const std::optional<uint64_t> shifted = CheckedMul(value, 10);
    const std::optional<uint64_t> sum =
        shifted ? CheckedAdd(*shifted, static_cast<uint64_t>(digit - '0')) : std::nullopt;
    if (!sum) return {};
    value = *sum;
  }
  return CheckedMul(value, unit);
}

// The bytes that 0.digits of a unit are; nothing if they are no whole number.
std::optional<uint64_t> FractionBytes(std::string_view digits, uint64_t unit) {
  digits = digits.substr(0, digits.find_last_not_of('0') + 1);
  if (digits.size() > kSizeFractionDigitsMax) return {};
  uint64_t scale = 1;
  for (size_t i = 0; i < digits.size(); ++i) scale *= 10;
  const uint64_t value = Scaled(digits, 1).value_or(0);
  // digits x unit may not fit; what both share with the scale goes first.
  const uint64_t shared = std::gcd(unit, scale);
  scale /= shared;
  if (value % scale != 0) return {};
  return value / scale * (unit / shared);
}

}  // namespace

Result<uint64_t> ParseSize(const std::string& text) {
  const std::string quoted = text.substr(0, kQuotedMax);
  std::string small = text;
  std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string_view rest = small;
  const std::string_view whole = TakeDigits(&rest);
  const bool has_point = rest.starts_with('.');
  if (has_point) rest.remove_prefix(1);
  const std::string_view fraction = has_point ? TakeDigits(&rest) : std::string_view();
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  const std::optional<uint64_t> unit = UnitBytes(rest);
  if (whole.empty() || (has_point && fraction.empty()) || !unit) {
    return Invalid("\"{}\", {}", quoted, kExpected);
  }
  const std::optional<uint64_t> bytes = Scaled(whole, *unit);
  const std::optional<uint64_t> more = FractionBytes(fraction, *unit);
  if (bytes && !more) {
    return Invalid("\"{}\" is no whole number of bytes, {}", quoted, kExpected);
  }
  const std::optional<uint64_t> sum = bytes ? CheckedAdd(*bytes, *more) : std::nullopt;
  if (!sum) return Invalid("\"{}\", expected at most {} bytes", quoted, UINT64_MAX);
  return *sum;
}

}  // namespace smoe::cli
