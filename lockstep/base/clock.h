// Time is passed in, never taken. Now() is CLOCK_BOOTTIME: it runs through suspend and never jumps, and all processes
// of a machine agree on it. WallNow() is for people to read only.
#pragma once

#include "lockstep/base/units.h"

namespace lockstep {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos Now() const = 0;
  virtual Nanos WallNow() const = 0;  // since 1970-01-01 UTC
};

class SystemClock final : public Clock {
 public:
  Nanos Now() const override;
  Nanos WallNow() const override;
};

// Goes on where the clock of another machine was, for who goes on with that machine's work. Told so before any of its
// times matters.
class ContinuedClock final : public Clock {
 public:
  Nanos Now() const override { return system_.Now() + ahead_; }
  Nanos WallNow() const override { return system_.WallNow(); }
  void Continue(Nanos ahead) { ahead_ = ahead; }

 private:
  SystemClock system_;
  Nanos ahead_;
};

// Stands still until told otherwise. Thread-compatible.
class FakeClock final : public Clock {
 public:
  Nanos Now() const override { return now_; }
  Nanos WallNow() const override { return now_; }
  void Advance(Seconds seconds) { now_ += ToNanos(seconds); }

 private:
  Nanos now_{1'000'000'000};
};

}  // namespace lockstep
