#include "lockstep/synth/fault.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/synth/job.h"

namespace lockstep::synth {
namespace {

std::string ErrorOf(const std::string& text) { return Message(ParseFault(text).status()); }

TEST(ParseFault, ReadsWhatItIsTold) {
  const Fault fault = ParseFault("transient_worker:dp=3,stage=1,factor=1.25,steps=6-15").value();
  EXPECT_EQ(fault.kind, FaultKind::kTransientWorker);
  EXPECT_EQ(OneLine(FaultJson(fault)),
            R"({"kind":"transient_worker","dp":3,"stage":1,"factor":1.25,"share":0.2,"seconds":0.25,"steps":[6,15]})");
  EXPECT_EQ(ParseFault("gc").value().seconds.value, 0.25);
  EXPECT_EQ(ParseFault("fabric:steps=7").value().last_step, 7);
}

TEST(ParseFault, NamesWhatIsWrong) {
  EXPECT_EQ(ErrorOf("slow"),
            "fault \"slow\": expected one of worker, transient_worker, stage, sequence_length, gc, link, ring, fabric, "
            "data_loading");
  EXPECT_EQ(ErrorOf("worker:dp"), "fault worker: \"dp\" is no key=value");
  EXPECT_EQ(ErrorOf("worker:steps=1"), "fault worker: \"steps\" says nothing about it; expected dp, stage, factor");
  EXPECT_EQ(ErrorOf("worker:dp=1,dp=2"), "fault worker: dp is given twice");
  EXPECT_EQ(ErrorOf("worker:factor=inf"), "fault worker: factor can't be \"inf\"");
  EXPECT_EQ(ErrorOf("worker:factor=1e39"),
            "fault worker: factor is 1e+39 and seconds 0.25, expected 100000 and 100000 at most");
  EXPECT_EQ(ErrorOf("sequence_length:factor=11"),
            "fault sequence_length: factor is 11 and seconds 0.25, expected 10 and 100000 at most");
  EXPECT_EQ(ErrorOf("gc:seconds=1e6"), "fault gc: factor is 1.5 and seconds 1e+06, expected 100000 and 100000 at most");
  EXPECT_EQ(ErrorOf("gc:share=2"), "fault gc: share can't be \"2\"");
  EXPECT_EQ(ErrorOf("fabric:steps=5-4"), "fault fabric: steps can't be \"5-4\"");
}

TEST(Generate, FaultsMustFitTheJob) {
  EXPECT_EQ(Message(Generate({.dp = 2}, {ParseFault("worker:dp=2").value()}, 1).status()),
            "fault worker: dp is 2, expected 0 to 1");
  EXPECT_EQ(Message(Generate({.pp = 2}, {ParseFault("link:stage=1").value()}, 1).status()),
            "fault link: no stage follows stage 1; expected 0 to 0");
}

}  // namespace
}  // namespace lockstep::synth
