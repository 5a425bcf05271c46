// What the programs that test the torch-free interface share: that misuse is refused with the right words.
#pragma once

#include <cstdio>
#include <cstring>
#include <stdexcept>

inline int failures = 0;

// Counts a failure unless `call` throws std::invalid_argument with `text` in its message.
template <class Call>
void expect_refusal(const char* text, const Call& call) {
  try {
    call();
    std::printf("accepted, should say '%s'\n", text);
  } catch (const std::invalid_argument& error) {
    if (std::strstr(error.what(), text) != nullptr) return;
    std::printf("says '%s', should say '%s'\n", error.what(), text);
  }
  ++failures;
}
