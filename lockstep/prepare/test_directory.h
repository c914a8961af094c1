// A directory for the files of a test.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/test_folder.h"
#include "lockstep/prepare/source.h"

namespace lockstep::prepare {

class Directory : public testing::Test {
 protected:
  std::string Write(const std::string& name, std::string_view text) const { return folder_.Write(name, text); }
  std::unique_ptr<Source> Open(const SourceSpec& spec) {
    absl::StatusOr<std::unique_ptr<Source>> source = OpenSource(spec);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? *std::move(source) : nullptr;
  }
  std::string ErrorOf(const SourceSpec& spec) { return std::string(OpenSource(spec).status().message()); }

  const TestFolder folder_;
  const std::string root_ = folder_.path();
};

}  // namespace lockstep::prepare
