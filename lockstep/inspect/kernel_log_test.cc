#include "lockstep/inspect/kernel_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "lockstep/inspect/kernel_log_reader.h"
#include "lockstep/inspect/test_tree.h"

namespace lockstep::inspect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string Text(const std::optional<LogEvent>& event) {
  if (!event) return "nothing";
  return fmt::format("{} {} {}{}", event->item.substr(7), event->subject, FaultClassName(event->fault),
                     event->heals ? " over" : "");
}

struct Line {
  const char* line;
  const char* expected;
};

void Expect(std::initializer_list<Line> lines) {
  for (const Line& line : lines) EXPECT_EQ(Text(ClassifyKernelLine(line.line)), line.expected) << line.line;
}

TEST(KernelLine, TheKernelItself) {
  Expect(
      {{"Kernel panic - not syncing: Fatal exception in interrupt", "fault kernel machine"},
       {"Kernel panic - not syncing: Out of memory: Killed process", "fault kernel machine"},
       {"watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", "fault kernel machine"},
       {"NMI watchdog: Watchdog detected hard LOCKUP on cpu 5", "fault kernel machine"},
       {"BUG: unable to handle page fault for address: ffffc90000000000", "fault kernel machine"},
       {"Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008", "fault kernel machine"},
       {"Oops: 0002 [#1] PREEMPT SMP NOPTI", "fault kernel machine"},
       {"general protection fault, probably for non-canonical address 0xdead: 0000 [#1]", "fault kernel machine"},
       {"traps: python3[812] general protection fault ip:7f12 sp:7ffd error:0 in libc.so.6",
        "application python3 software"},
       {"python3[812]: segfault at 0 ip 00007f sp 00007ffd error 4 in libtorch.so", "application python3 software"},
       {"INFO: task python3:812 blocked for more than 120 seconds.", "hung kernel warning"},
       {"rcu: INFO: rcu_preempt self-detected stall on CPU", "hung kernel warning"}});
}

TEST(KernelLine, Hardware) {
  Expect({{"mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 4: be00000000800400",
           "machine_check kernel machine"},
          // Bit 61 of the bank's status: 8c.. is 1000 1100, not set; b2.. is 1011 0010, set.
          {"mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 8: 8c00004000010091", "corrected kernel warning"},
          {"mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 1: b200000000000175", "machine_check kernel machine"},
          {"mce: [Hardware Error]: Machine check events logged", "corrected kernel warning"},
          {"EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", "corrected MC0 warning"},
          {"EDAC MC1: 1 UE memory read error on CPU_SrcID#1_Channel#2_DIMM#0", "machine_check MC1 machine"},
          {"Memory failure: 0x1dcb63: recovery action for dirty LRU page: Recovered", "machine_check kernel machine"},
          {"pcieport 0000:00:1c.0: AER: Corrected error received: 0000:01:00.0", "corrected 0000:00:1c.0 warning"},
          {"nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
           "corrected 0000:01:00.0 warning"},
          {"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
           "machine_check 0000:00:01.0 machine"},
          {"pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:01:00.0",
           "machine_check 0000:00:01.0 warning"},
          {"pcieport 0000:3a:00.0: pciehp: Slot(12): Link Down", "machine_check 0000:3a:00.0 machine"},
          {"{1}[Hardware Error]: event severity: corrected", "corrected kernel warning"},
          {"{1}[Hardware Error]: event severity: fatal", "machine_check kernel machine"},
          {"CPU1: Core temperature above threshold, cpu clock throttled (total events = 17)", "thermal CPU1 warning"},
          {"CPU1: Core temperature/speed normal", "thermal CPU1 warning over"}});
}

TEST(KernelLine, Gpus) {
  Expect({{"NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
           "xid GPU 0000:3b:00 machine"},
          {"NVRM: Xid (PCI:0000:3b:00): 48, pid=812, An uncorrectable double bit error (DBE) has been detected",
           "xid GPU 0000:3b:00 machine"},
          {"NVRM: Xid (PCI:0000:3b:00): 13, pid=812, name=python3, Graphics SM Warp Exception",
           "application GPU 0000:3b:00 software"},
          {"NVRM: Xid (PCI:0000:3b:00): 31, pid=812, name=python3, Ch 00000008, MMU Fault",
           "application GPU 0000:3b:00 software"},
          {"NVRM: Xid (PCI:0000:3b:00): 7777, something new", "xid GPU 0000:3b:00 warning"},
          {"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress",
           "xid NVSwitch 0000:c1:00.0 warning"},
          {"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 32 Minion Link DLREQ",
           "xid NVSwitch 0000:c1:00.0 machine"},
          {"NVRM: RmInitAdapter failed! (0x26:0x56:1474)", "xid kernel machine"},
          {"NVRM: Xid (PCI:0000:3b:00: broken", "nothing"}});
  for (const uint64_t xid : {48, 63, 64, 74, 79, 94, 95, 119, 120})
    EXPECT_EQ(XidClass(xid), FaultClass::kMachine) << xid;
  for (const uint64_t xid : {13, 31, 43, 45, 68}) EXPECT_EQ(XidClass(xid), FaultClass::kSoftware) << xid;
}

TEST(KernelLine, FileSystemsAndDisks) {
  Expect({{"EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
           "filesystem sda1 machine"},
          {"EXT4-fs (sda1): Remounting filesystem read-only", "filesystem sda1 machine"},
          {"EXT4-fs (vda): mounted filesystem 0000 r/w without journal. Quota mode: none.", "nothing"},
          {"XFS (nvme0n1p1): Log I/O Error Detected. Shutting down filesystem", "filesystem nvme0n1p1 machine"},
          {"XFS (dm-0): Mounting V5 Filesystem", "nothing"},
          {"BTRFS: error (device sdb1) in write_all_supers:4370: errno=-5 IO failure", "filesystem sdb1 machine"},
          {"nfs: server 10.0.0.7 not responding, still trying", "remote 10.0.0.7 network"},
          {"nfs: server 10.0.0.7 OK", "remote 10.0.0.7 network over"},
          {"blk_update_request: I/O error, dev sdb, sector 2048 op 0x0:(READ) flags 0x0", "disk sdb machine"},
          {"critical medium error, dev sdb, sector 123456", "disk sdb machine"},
          {"I/O error, dev sr0, sector 0 op 0x0:(READ)", "nothing"},
          {"Buffer I/O error on dev sda1, logical block 0, async page read", "disk sda1 machine"},
          {"nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff", "disk nvme0 machine"},
          {"nvme nvme1: I/O 12 QID 3 timeout, aborting", "disk nvme1 warning"},
          {"ata3.00: failed command: READ FPDMA QUEUED", "disk ata3 machine"},
          {"ata5: SATA link down (SStatus 0 SControl 300)", "nothing"},
          {"sd 0:0:0:0: [sda] tag#0 Sense Key : Medium Error [current]", "disk 0:0:0:0 machine"},
          {"sd 0:0:0:0: rejecting I/O to offline device", "disk 0:0:0:0 machine"}});
}

TEST(KernelLine, LinksAndMemory) {
  Expect(
      {{"e1000e: eth0 NIC Link is Down", "link eth0 network"},
       {"e1000e 0000:00:19.0 eno1: NIC Link is Up 1000 Mbps Full Duplex, Flow Control: None", "link eno1 network over"},
       {"mlx5_core 0000:3b:00.0 ens1f0np0: Link down", "link ens1f0np0 network"},
       {"mlx5_core 0000:3b:00.0 ens1f0np0: Link up", "link ens1f0np0 network over"},
       {"ixgbe 0000:05:00.0 p5p1: NIC Link is Down", "link p5p1 network"},
       {"bond0: (slave eth1): link status definitely down, disabling slave", "link eth1 network"},
       {"tg3 0000:03:00.0 eth2: Link is down", "link eth2 network"},
       {"IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready", "nothing"},
       {"NETDEV WATCHDOG: eth0 (e1000e): transmit queue 0 timed out", "link eth0 network"},
       {"Out of memory: Killed process 4711 (python3) total-vm:123kB, anon-rss:99kB", "oom python3 software"},
       {"Memory cgroup out of memory: Killed process 12 (tail) total-vm:3kB", "oom tail software"},
       {"Out of memory: Kill process 4711 (python) score 900 or sacrifice child", "oom python software"}});
}

TEST(KernelLine, WhatAHealthyMachineSays) {
  Expect({{"Command line: BOOT_IMAGE=/vmlinuz panic=10 oops=panic mce=off", "nothing"},
          {"mce: CPU supports 20 MCE banks", "nothing"},
          {"EDAC MC: Ver: 3.0.0", "nothing"},
          {"EDAC MC0: Giving out device to module sb_edac controller Sandy Bridge", "nothing"},
          {"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15", "nothing"},
          {"thermal LNXTHERM:00: registered as thermal_zone0", "nothing"},
          {"Freeing unused kernel memory: 2048K", "nothing"},
          {"ERST: Error Record Serialization Table (ERST) support is initialized.", "nothing"},
          {"perf: interrupt took too long (2507 > 2500), lowering kernel.perf_event_max_sample_rate", "nothing"},
          {"process_api (1): drop_caches: 10", "nothing"},
          {"", "nothing"}});
}

TEST(KernelRecord, Parses) {
  const auto record = ParseKernelRecord("30,1234,5678901,-;systemd[1]: hello; world\n SUBSYSTEM=x\n");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->level, 6);
  EXPECT_EQ(record->facility, 3);
  EXPECT_EQ(record->sequence, 1234U);
  EXPECT_EQ(record->at.value, 5678901000);
  EXPECT_EQ(record->text, "systemd[1]: hello; world");
  for (const char* bad :
       {"", ";", "a,b,c;x", "1,2;x", "1,2,3", "99999999,1,1;x", "1,1,99999999999999999999;x", "-1,2,3;x"})
    EXPECT_FALSE(ParseKernelRecord(bad)) << bad;
}

TEST(KernelText, WithoutWhatPrintersPutBefore) {
  for (const char* line : {"6,1,2,-;ata3: x", "[   12.345678] ata3: x", "<6>[   12.345678] ata3: x",
                           "[   12.3] [ T812] ata3: x", "ata3: x", "Nov 24 19:03:10 node7 kernel: ata3: x",
                           "Nov 24 19:03:10 node7 kernel: [   12.3] ata3: x", "[Tue Nov 24 19:03:10 2026] ata3: x"})
    EXPECT_EQ(KernelText(line), "ata3: x") << line;
  EXPECT_EQ(KernelText("[Hardware Error]: x"), "[Hardware Error]: x");
}

class Log : public testing::Test {
 protected:
  std::vector<std::string> Judge(double at) {
    Reading reading;
    judge_.Judge(At(at), reading);
    std::vector<std::string> seen;
    for (const Condition& condition : reading.conditions)
      seen.push_back(condition.item + " " + condition.subject + ": " + condition.text);
    return seen;
  }
  LogJudge judge_{Settings()};
};

TEST_F(Log, LinesCountWithinTheirWindow) {
  judge_.Take("EDAC MC0: 1 CE memory read error on DIMM", At(0));
  EXPECT_THAT(Judge(0), IsEmpty());
  for (int i = 1; i < 10; ++i) judge_.Take("EDAC MC0: 1 CE memory read error on DIMM", At(i));
  EXPECT_THAT(Judge(10), ElementsAre("kernel_corrected MC0: EDAC MC0: 1 CE memory read error on DIMM (the newest of 10 "
                                     "lines in 300 s)"));
  EXPECT_THAT(Judge(320), IsEmpty());
}

TEST_F(Log, ALinkThatIsUpAgainIsForgotten) {
  judge_.Take("e1000e: eth0 NIC Link is Down", At(0));
  judge_.Take("e1000e: eth1 NIC Link is Down", At(0));
  EXPECT_EQ(Judge(1).size(), 2U);
  judge_.Take("e1000e: eth0 NIC Link is Up 1000 Mbps", At(2));
  EXPECT_THAT(Judge(2), ElementsAre("kernel_link eth1: e1000e: eth1 NIC Link is Down"));
}

TEST_F(Log, SubjectsAreBounded) {
  for (int i = 0; i < 10000; ++i) judge_.Take(fmt::format("I/O error, dev sd{}, sector 1", i), At(0));
  EXPECT_EQ(Judge(0).size(), 256U);
}

TEST(KernelLogReader, AFileUnderAnotherRoot) {
  const TestTree fake;
  fake.Write("/dev/kmsg", "6,1,5,-;random: crng init done\n2,2,9,-;Kernel panic - not syncing: test");
  const auto reader = KernelLogReader(Settings(), {fake.tree(), {}});
  EXPECT_EQ(reader->Read(At(1)).conditions.size(), 1U);
  fake.Append("/dev/kmsg", "3,3,10,-;XFS (sda1): Filesystem has been shut down due to log error (0x2).");
  EXPECT_EQ(reader->Read(At(3)).conditions.size(), 2U);
}

TEST(KernelLogReader, WithoutTheRightToReadItSaysSo) {
  const TestTree fake;
  const Reading reading = KernelLogReader(Settings(), {fake.tree(), {}})->Read(At(1));
  EXPECT_EQ(reading.missing.at("kernel_fault"), fake.tree().Path("/dev/kmsg") + ": No such file or directory");
}

// Lines of other systems, labelled by their operators.

std::vector<std::string> CsvFields(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::vector<std::map<std::string, std::string>> ReadCsv(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> names = CsvFields(line);
  std::vector<std::map<std::string, std::string>> rows;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = CsvFields(line);
    for (size_t i = 0; i < std::min(names.size(), fields.size()); ++i) {
      if (i == 0) rows.emplace_back();
      rows.back()[names[i]] = fields[i];
    }
  }
  return rows;
}

// More than a warning.
bool IsFault(const std::string& line) {
  std::optional<LogEvent> event = ClassifyKernelLine(line);
  if (!event) event = ClassifyOtherLine(line);
  return event && !event->heals && event->fault != FaultClass::kWarning;
}

struct Score {
  int found = 0, missed = 0, wrong = 0;
  double recall() const { return found / static_cast<double>(found + missed); }
  double precision() const { return found / static_cast<double>(found + wrong); }
  void Count(bool truth, bool said, const std::string& line) {
    found += truth && said;
    missed += truth && !said;
    wrong += !truth && said;
    if (truth != said) std::printf("%s: %s\n", truth ? "missed" : "wrong", line.c_str());
  }
};

TEST(RealLogs, BlueGene) {
  const auto rows = ReadCsv(LOCKSTEP_DATA "/faults/loghub_bgl_2k_structured.csv");
  if (rows.empty()) GTEST_SKIP() << "no " LOCKSTEP_DATA "/faults/loghub_bgl_2k_structured.csv";
  Score score;
  for (const auto& row : rows) score.Count(row.at("Label") != "-", IsFault(row.at("Content")), row.at("Content"));
  std::printf("Blue Gene/L: %d found, %d missed, %d wrong\n", score.found, score.missed, score.wrong);
  EXPECT_GE(score.recall(), 0.95);
  EXPECT_GE(score.precision(), 0.95);
}

TEST(RealLogs, LanlSystem20) {
  const auto rows = ReadCsv(LOCKSTEP_DATA "/faults/loghub_lanl_system20_HPC_2k_structured.csv");
  if (rows.empty()) GTEST_SKIP() << "no " LOCKSTEP_DATA "/faults/loghub_lanl_system20_HPC_2k_structured.csv";
  const std::map<std::string, bool> fault_by_state = {{"net.niff.down", true},
                                                      {"net.niff.up", false},
                                                      {"state_change.unavailable", true},
                                                      {"psu", true},
                                                      {"fan", false},
                                                      {"start", false},
                                                      {"success", false},
                                                      {"new", false},
                                                      {"clusterfilesystem.not_served", true},
                                                      {"clusterfilesystem.no_server", true},
                                                      {"fdmn.full", true},
                                                      {"fdmn.panic", true}};
  Score score;
  for (const auto& row : rows) {
    const auto state = fault_by_state.find(row.at("State"));
    if (state != fault_by_state.end()) score.Count(state->second, IsFault(row.at("Content")), row.at("Content"));
  }
  std::printf("LANL System 20: %d found, %d missed, %d wrong\n", score.found, score.missed, score.wrong);
  EXPECT_GE(score.recall(), 0.95);
  EXPECT_GE(score.precision(), 0.95);
}

}  // namespace
}  // namespace lockstep::inspect
