// A version of what workers run: where its code is, and what is laid over their environment. `lockstep update` asks for
// one; version 0 is what `lockstep run` was started with. docs/models/recover.md, "Hot update".
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/units.h"
#include "lockstep/incident/fields.h"

namespace lockstep::control {

struct Version {
  int number = 0;
  std::string code{};  // the directory that it was asked with; empty: the code that the run began with
  std::string hash{};  // of that directory's code; if it is kept, of what the run began with
  std::map<std::string, std::string> env{};
  // With no code of its own: as the code was when the run began, should it have been changed in its place since.
  bool kept = false;
  bool operator==(const Version&) const = default;
};

enum class VersionStage : uint8_t {
  kCopying,  // the nodes take their copies
  kWaiting,  // for a restart
  kOnTrial,  // it runs, and has not made update.steps steps yet
  kGood,
  kBad,      // it failed while it was on trial, or was rolled back later
  kDropped,  // it never ran, or not long enough to be judged
};
const char* VersionStageName(VersionStage stage);  // "on_trial"

// What has become of a version.
struct Update {
  Version version{};
  VersionStage stage = VersionStage::kGood;
  std::string why{};  // of its stage, where there is something to say
  int base = 0;       // the version on which it builds
  bool now = false;   // it does not wait for somebody else's restart
  Nanos deadline{};   // from then on neither
  int took_back = 0;  // it asked for what runs: the version that waited until then; 0: none
};

// "waits for the next restart", "bad: incident 3: ..."
std::string StageText(const Update& update);
// "code /home/me/new, LR=0.1"
std::string WhatIsNew(const Version& version);
// "version 2 (code /home/me/new, LR=0.1)"
std::string VersionText(const Version& version);
Json EnvironmentJson(const std::map<std::string, std::string>& env);
std::map<std::string, std::string> ReadEnvironment(incident::Fields& parent);

}  // namespace lockstep::control
