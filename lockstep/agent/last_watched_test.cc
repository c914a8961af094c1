#include "lockstep/agent/last_watched.h"

#include <gtest/gtest.h>

#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

TEST(LastWatched, IsWhatWasNotedLast) {
  const TestFolder run;
  EXPECT_EQ(LastWatched(run.path()), Nanos{}) << "nobody noted anything";
  ASSERT_TRUE(NoteUnwatched(run.path(), Nanos{12}).ok());
  ASSERT_TRUE(NoteUnwatched(run.path(), Nanos{345}).ok());
  EXPECT_EQ(LastWatched(run.path()), Nanos{345});
}

TEST(LastWatched, OfWhatIsNoNoteIsNotKnown) {
  for (const char* text : {"", "{", "[]", "{\"since_ns\": \"soon\"}"}) {
    const TestFolder run;
    ASSERT_TRUE(WriteFileAtomically(run / "unwatched.json", text).ok());
    EXPECT_EQ(LastWatched(run.path()), Nanos{}) << text;
  }
}

}  // namespace
}  // namespace lockstep::agent
