#include "lockstep/control/diagnosis.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::control {
namespace {

using incident::Finding;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string Report(const std::string& node, double checksum, bool ok, double rate = 10) {
  probe::NodeReport report{.node = node, .isa = "avx2", .type = "two cores"};
  report.measurements = {
      {.name = "gemm.bits", .value = checksum, .unit = "crc32c", .ok = ok, .text = ok ? "as known" : "wrong"},
      {.name = "memory.all", .value = rate, .unit = "GB/s"}};
  return OneLine(probe::ReportJson(report));
}

std::vector<std::string> Healthy(int count) {
  std::vector<std::string> reports;
  for (int i = 0; i < count; ++i) reports.push_back(Report(fmt::format("n{}", i), 7, true));
  return reports;
}

TEST(Diagnosis, HealthyNodes) { EXPECT_THAT(FindingsOfTests(Healthy(4)), IsEmpty()); }

TEST(Diagnosis, WrongBitsOfOneAreCertain) {
  std::vector<std::string> reports = Healthy(3);
  reports.push_back(Report("bad", 8, false));
  const std::vector<Finding> findings = FindingsOfTests(reports);
  ASSERT_FALSE(findings.empty());
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.suspects.front().name, "bad");
    EXPECT_TRUE(finding.certain);
    EXPECT_THAT(finding.evidence.front(), HasSubstr("gemm.bits"));
  }
}

TEST(Diagnosis, WhatMostFindWrongWithThemselvesIsNoOnesFault) {
  std::vector<std::string> reports = Healthy(1);
  reports.push_back(Report("x", 7, false));
  reports.push_back(Report("y", 7, false));
  const std::vector<Finding> findings = FindingsOfTests(reports);
  EXPECT_THAT(findings, SizeIs(2));
  for (const Finding& finding : findings) EXPECT_FALSE(finding.certain);
}

TEST(Diagnosis, ASlowOneOfFewIsNamedAndNotCertain) {
  std::vector<std::string> reports = Healthy(4);
  reports.push_back(Report("slow", 7, true, 3));
  const std::vector<Finding> findings = FindingsOfTests(reports);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].suspects.front().name, "slow");
  EXPECT_FALSE(findings[0].certain) << "the spread of so few is assumed";
}

std::string WithoutNeighbour(const std::string& node, const std::string& address, const std::string& missing) {
  probe::NodeReport report{.node = node, .address = address, .isa = "avx2", .type = "two cores"};
  report.measurements = {{.name = "neighbours.receive", .unit = "GB/s", .ok = false, .text = "late", .with = missing}};
  return OneLine(probe::ReportJson(report));
}

TEST(Diagnosis, WhoTestedOnlyItselfIsNotMissedInTheRing) {
  const std::string a = WithoutNeighbour("a", "host:1", "host:2");
  EXPECT_THAT(FindingsOfTests({a, Report("b", 7, true)}), IsEmpty());
  EXPECT_THAT(FindingsOfTests({a, WithoutNeighbour("b", "host:2", "host:1")}), SizeIs(1)) << "both were in it";
}

TEST(Diagnosis, GarbageSaysNothing) {
  std::vector<std::string> reports = Healthy(2);
  reports.push_back("{");
  reports.push_back("");
  reports.push_back(reports[0]);  // one node twice
  EXPECT_THAT(FindingsOfTests(reports), IsEmpty());
}

}  // namespace
}  // namespace lockstep::control
