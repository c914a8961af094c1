#include "lockstep/inspect/kernel_log.h"

#include <algorithm>
#include <array>
#include <span>

#include "lockstep/inspect/tree.h"

namespace lockstep::inspect {
namespace {

using enum FaultClass;

// Whom a line is about: the word before or behind the text that was found, or one that begins with a known name.
enum class Named : uint8_t { kNobody, kBehindFirst, kBehindSecond, kBeforeFirst, kFirstWord, kInterface };

struct Rule {
  const char* first;   // stands in the line,
  const char* second;  // and this behind it; nullptr: nothing more
  const char* item;
  FaultClass fault;
  Named named = Named::kNobody;
  bool heals = false;
  const char* unless = nullptr;  // stands nowhere in the line
};

// The first that fits decides. Upper and lower case count.
constexpr Rule kRules[] = {
    // The kernel of itself.
    {"Kernel panic - not syncing", nullptr, "kernel_fault", kMachine},
    {"BUG: soft lockup - CPU#", nullptr, "kernel_fault", kMachine},
    {"detected hard LOCKUP on cpu", nullptr, "kernel_fault", kMachine},
    {"hard LOCKUP - CPU#", nullptr, "kernel_fault", kMachine},
    {"BUG: unable to handle", nullptr, "kernel_fault", kMachine},
    {"Unable to handle kernel ", nullptr, "kernel_fault", kMachine},
    {"kernel BUG at ", nullptr, "kernel_fault", kMachine},
    {"BUG: Bad page ", nullptr, "kernel_fault", kMachine},
    {"BUG: Bad rss-counter", nullptr, "kernel_fault", kMachine},
    {"BUG: scheduling while atomic", nullptr, "kernel_fault", kMachine},
    {"BUG: kernel NULL pointer", nullptr, "kernel_fault", kMachine},
    {"BUG: KASAN:", nullptr, "kernel_fault", kMachine},
    {"Internal error: Oops", nullptr, "kernel_fault", kMachine},
    {"Oops: ", nullptr, "kernel_fault", kMachine},
    {"double fault: ", nullptr, "kernel_fault", kMachine},
    {"traps: ", "general protection", "kernel_application", kSoftware, Named::kBehindFirst},
    {"traps: ", "trap ", "kernel_application", kSoftware, Named::kBehindFirst},
    {"general protection fault", nullptr, "kernel_fault", kMachine},
    {": segfault at ", nullptr, "kernel_application", kSoftware, Named::kBeforeFirst},
    // Memory that ran out.
    {"ut of memory: Kill", "(", "kernel_oom", kSoftware, Named::kBehindSecond},
    {"ut of Memory: Kill", "(", "kernel_oom", kSoftware, Named::kBehindSecond},
    {"blocked for more than ", "seconds", "kernel_hung", kWarning},
    {"self-detected stall on CPU", nullptr, "kernel_hung", kWarning},
    {"detected stalls on CPUs", nullptr, "kernel_hung", kWarning},
    {"BUG: workqueue lockup", nullptr, "kernel_hung", kWarning},
    // Hardware errors. What says that it was corrected comes before what only says that there was an error.
    {"AER: Corrected error", nullptr, "kernel_corrected", kWarning, Named::kBeforeFirst},
    {"AER: Multiple Corrected error", nullptr, "kernel_corrected", kWarning, Named::kBeforeFirst},
    {"AER: Correctable error", nullptr, "kernel_corrected", kWarning, Named::kBeforeFirst},
    {"AER: Multiple Correctable error", nullptr, "kernel_corrected", kWarning, Named::kBeforeFirst},
    {"PCIe Bus Error: severity=Correct", nullptr, "kernel_corrected", kWarning, Named::kBeforeFirst},
    {"Uncorrectable (Non-Fatal)", nullptr, "kernel_machine_check", kWarning, Named::kFirstWord},
    {"Uncorrected (Non-Fatal)", nullptr, "kernel_machine_check", kWarning, Named::kFirstWord},
    {"PCIe Bus Error: severity=Uncorrect", nullptr, "kernel_machine_check", kMachine, Named::kBeforeFirst},
    {"AER: Uncorrect", nullptr, "kernel_machine_check", kMachine, Named::kBeforeFirst},
    {"AER: Multiple Uncorrect", nullptr, "kernel_machine_check", kMachine, Named::kBeforeFirst},
    {"DPC: containment event", nullptr, "kernel_machine_check", kMachine, Named::kBeforeFirst},
    {"pciehp: Slot(", "Link Down", "kernel_machine_check", kMachine, Named::kFirstWord},
    {"pciehp: Slot(", "Card not present", "kernel_machine_check", kMachine, Named::kFirstWord},
    {"pciehp: Slot(", nullptr, "kernel_corrected", kWarning, Named::kFirstWord, true},
    {"EDAC ", " CE ", "kernel_corrected", kWarning, Named::kBehindFirst},
    {"EDAC ", " UE ", "kernel_machine_check", kMachine, Named::kBehindFirst},
    {"EDAC ", "ncorrected error", "kernel_machine_check", kMachine, Named::kBehindFirst},
    {"Hardware Error]: Corrected error", nullptr, "kernel_corrected", kWarning},
    {"Hardware Error]: event severity: corrected", nullptr, "kernel_corrected", kWarning},
    {"Hardware Error]: event severity: fatal", nullptr, "kernel_machine_check", kMachine},
    {"Hardware Error]: event severity: recoverable", nullptr, "kernel_machine_check", kMachine},
    {"Hardware Error]: Uncorrected", nullptr, "kernel_machine_check", kMachine},
    {"Hardware Error]: Deferred error", nullptr, "kernel_machine_check", kMachine},
    {"Hardware Error]: Machine check events logged", nullptr, "kernel_corrected", kWarning},
    {"Machine Check Exception: ", nullptr, "kernel_machine_check", kMachine},
    {"ncorrected hardware memory error", nullptr, "kernel_machine_check", kMachine},
    {"Memory failure: 0x", nullptr, "kernel_machine_check", kMachine},
    {"HANDLING MCE MEMORY ERROR", nullptr, "kernel_corrected", kWarning},
    {"Fatal local machine check", nullptr, "kernel_machine_check", kMachine},
    // GPUs.
    {"NVRM: ", "GPU has fallen off the bus", "kernel_xid", kMachine, Named::kNobody},
    {"NVRM: RmInitAdapter failed", nullptr, "kernel_xid", kMachine},
    {"NVRM: rm_init_adapter failed", nullptr, "kernel_xid", kMachine},
    // File systems.
    {"EXT4-fs error (device ", nullptr, "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"EXT3-fs error (device ", nullptr, "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"EXT2-fs error (device ", nullptr, "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"EXT4-fs (", "Remounting filesystem read-only", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"EXT4-fs (", "Delayed block allocation failed", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"EXT4-fs (", "I/O error", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"Aborting journal on device ", nullptr, "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"ournal commit I/O error", nullptr, "kernel_filesystem", kMachine},
    {"REISERFS error (device ", nullptr, "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"Detected aborted journal", nullptr, "kernel_filesystem", kMachine},
    {"XFS (", "xfs_do_force_shutdown", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"XFS (", "hutting down filesystem", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"XFS (", "ilesystem has been shut down", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"XFS (", "orruption", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"XFS (", "I/O error", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"XFS (", "I/O Error", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"BTRFS error (device ", nullptr, "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"BTRFS critical (device ", nullptr, "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"BTRFS: error (device ", nullptr, "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"BTRFS info (device ", "forced readonly", "kernel_filesystem", kMachine, Named::kBehindFirst},
    {"FAT-fs (", "error", "kernel_filesystem", kWarning, Named::kBehindFirst},
    {"emounting filesystem read-only", nullptr, "kernel_filesystem", kMachine},
    // Their servers.
    {"nfs: server ", "not responding", "kernel_remote", kNetwork, Named::kBehindFirst},
    {"nfs: server ", " OK", "kernel_remote", kNetwork, Named::kBehindFirst, true},
    {"CIFS: ", "has not responded in", "kernel_remote", kNetwork},
    {"Lustre: ", "Connection restored to", "kernel_remote", kNetwork, Named::kBehindSecond, true},
    {"Connection to ", "was lost; in progress operations", "kernel_remote", kNetwork, Named::kBehindFirst},
    {"LustreError: ", "This client was evicted by", "kernel_remote", kNetwork},
    {"libceph: ", "socket closed", "kernel_remote", kNetwork, Named::kBehindFirst},
    {"libceph: ", "session lost", "kernel_remote", kNetwork, Named::kBehindFirst},
    {"ceph: mds", " hung", "kernel_remote", kNetwork},
    // Disks.
    {"I/O error, dev ", nullptr, "kernel_disk", kMachine, Named::kBehindFirst},
    {"critical medium error, dev ", nullptr, "kernel_disk", kMachine, Named::kBehindFirst},
    {"critical target error, dev ", nullptr, "kernel_disk", kMachine, Named::kBehindFirst},
    {"critical space allocation error, dev ", nullptr, "kernel_disk", kMachine, Named::kBehindFirst},
    {"Buffer I/O error on dev ", nullptr, "kernel_disk", kMachine, Named::kBehindFirst},
    {"Buffer I/O error on device ", nullptr, "kernel_disk", kMachine, Named::kBehindFirst},
    {"lost page write due to I/O error on ", nullptr, "kernel_disk", kMachine, Named::kBehindFirst},
    {"rejecting I/O to offline device", nullptr, "kernel_disk", kMachine, Named::kFirstWord},
    {"rejecting I/O to dead device", nullptr, "kernel_disk", kMachine, Named::kFirstWord},
    {"Sense Key : Medium Error", nullptr, "kernel_disk", kMachine, Named::kFirstWord},
    {"Sense Key : Hardware Error", nullptr, "kernel_disk", kMachine, Named::kFirstWord},
    {"cciss: ", "sense key = 0x3", "kernel_disk", kMachine},
    {"drive not ready for command", nullptr, "kernel_disk", kMachine, Named::kFirstWord},
    {"Device offlined", nullptr, "kernel_disk", kMachine, Named::kFirstWord},
    {"nvme ", "controller is down", "kernel_disk", kMachine, Named::kBehindFirst},
    {"nvme ", "timeout, reset controller", "kernel_disk", kMachine, Named::kBehindFirst},
    {"nvme ", "timeout, disable controller", "kernel_disk", kMachine, Named::kBehindFirst},
    {"nvme ", "Removing after probe failure", "kernel_disk", kMachine, Named::kBehindFirst},
    {"nvme ", "Device not ready; aborting", "kernel_disk", kMachine, Named::kBehindFirst},
    {"nvme ", "timeout, aborting", "kernel_disk", kWarning, Named::kBehindFirst},
    {"nvme", "I/O Error (sct ", "kernel_disk", kMachine, Named::kFirstWord},
    {"md/raid", "Disk failure on ", "kernel_disk", kWarning, Named::kBehindSecond},
    // Links. Drivers differ in the words before; the interface is the name nearest to the text.
    {"ink is Up", nullptr, "kernel_link", kNetwork, Named::kInterface, true},
    {"ink is up", nullptr, "kernel_link", kNetwork, Named::kInterface, true},
    {": Link up", nullptr, "kernel_link", kNetwork, Named::kInterface, true},
    {"link becomes ready", nullptr, "kernel_link", kNetwork, Named::kInterface, true},
    {"link status definitely up", nullptr, "kernel_link", kNetwork, Named::kInterface, true},
    {"ink is Down", nullptr, "kernel_link", kNetwork, Named::kInterface},
    {"ink is down", nullptr, "kernel_link", kNetwork, Named::kInterface},
    {": Link down", nullptr, "kernel_link", kNetwork, Named::kInterface},
    {"link status definitely down", nullptr, "kernel_link", kNetwork, Named::kInterface},
    {"NETDEV WATCHDOG: ", "timed out", "kernel_link", kNetwork, Named::kBehindFirst},
    {"mlx5_core ", "Cable error", "kernel_link", kNetwork, Named::kBehindFirst},
    {"mlx5_core ", "Cable unplugged", "kernel_link", kNetwork, Named::kBehindFirst},
    {"mlx5_core ", "evice's health compromised", "kernel_link", kMachine, Named::kBehindFirst},
    {"VAPI", "Catastrophic Error", "kernel_link", kMachine},
    {"mlx5_core ", "Fatal error", "kernel_link", kMachine, Named::kBehindFirst},
    // Heat.
    {"temperature above threshold", nullptr, "kernel_thermal", kWarning, Named::kFirstWord},
    {"temperature/speed normal", nullptr, "kernel_thermal", kWarning, Named::kFirstWord, true},
    {"critical temperature reached", nullptr, "kernel_thermal", kMachine, Named::kFirstWord},
};

// Words for the same in other systems' logs, in lower case; lines are compared so.
constexpr Rule kOtherRules[] = {
    {"detected and corrected", nullptr, "kernel_corrected", kWarning},
    {"error corrected", nullptr, "kernel_corrected", kWarning},
    {"attempting to correct", nullptr, "kernel_corrected", kWarning},
    {"retransmission error", nullptr, "kernel_corrected", kWarning},
    {"kernel panic", nullptr, "kernel_fault", kMachine},
    {"rts panic", nullptr, "kernel_fault", kMachine},
    {"panicked", nullptr, "kernel_fault", kMachine},
    {"kernel terminated", nullptr, "kernel_fault", kMachine},
    {"domain panic", nullptr, "kernel_filesystem", kMachine},
    {"machine check interrupt", nullptr, "kernel_machine_check", kMachine},
    {"uncorrectable", nullptr, "kernel_machine_check", kMachine},
    {"uncorrected", nullptr, "kernel_machine_check", kMachine},
    {"excessive soft failures", nullptr, "kernel_machine_check", kMachine},
    {"psu failure", nullptr, "kernel_machine_check", kMachine},
    {"power failure", nullptr, "kernel_machine_check", kMachine},
    {"power module", "fault", "kernel_machine_check", kMachine},
    {"power/control problem", nullptr, "kernel_machine_check", kMachine},
    {"is in the unavailable state", nullptr, "kernel_machine_check", kMachine},
    {"segmentation fault", nullptr, "kernel_application", kSoftware},
    {"tlb error interrupt", nullptr, "kernel_application", kSoftware},
    {"data storage interrupt", nullptr, "kernel_application", kSoftware},
    {"instruction storage interrupt", nullptr, "kernel_application", kSoftware},
    {"mount failed", nullptr, "kernel_remote", kNetwork, Named::kNobody, false, "retrying"},
    {"unable to mount", nullptr, "kernel_remote", kNetwork},
    {"domain", " is full", "kernel_filesystem", kSoftware},
    {"no space left on device", nullptr, "kernel_filesystem", kSoftware},
    {"input/output error", nullptr, "kernel_filesystem", kMachine},
    {"no server for", nullptr, "kernel_remote", kNetwork},
    {"no longer served by", nullptr, "kernel_remote", kNetwork},
    {"not responding", nullptr, "kernel_remote", kNetwork},
    {"not-responding", nullptr, "kernel_remote", kNetwork},
    {"link ok", nullptr, "kernel_link", kNetwork, Named::kNobody, true},
    {"detected an available network connection", nullptr, "kernel_link", kNetwork, Named::kNobody, true},
    {"failed network connection", nullptr, "kernel_link", kNetwork},
    {"no ethernet link", nullptr, "kernel_link", kNetwork},
    {"linkerror event interval expired", nullptr, "kernel_link", kNetwork, Named::kNobody, true},
    {"link error", nullptr, "kernel_link", kNetwork},
    {"link training failed", nullptr, "kernel_link", kNetwork},
    {"link has been severed", nullptr, "kernel_link", kNetwork},
    {"error receiving packet", nullptr, "kernel_link", kNetwork},
    {"failed to read message prefix", nullptr, "kernel_link", kNetwork},
    {"socket", "connection reset by peer", "kernel_link", kNetwork},
    {"socket", "connection timed out", "kernel_link", kNetwork},
    {"socket", "broken pipe", "kernel_link", kNetwork},
    {"temperature", "exceeds", "kernel_thermal", kWarning},
};

constexpr std::string_view kEnds = " ,;:()[]'\"\t";

std::string_view WordAt(std::string_view line, size_t at) {
  const size_t begin = line.find_first_not_of(" ('\"", at);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_first_of(" ,;()'\"\t", begin) - begin);
}

// With colons and brackets inside, as in "0000:3b:00.0" or "python[12]", without them at its end.
std::string_view Trimmed(std::string_view word) {
  while (!word.empty() && kEnds.find(word.back()) != std::string_view::npos) word.remove_suffix(1);
  return word;
}

std::string_view WordBefore(std::string_view line, size_t at) {
  const size_t end = line.find_last_not_of(kEnds, at == 0 ? 0 : at - 1);
  if (at == 0 || end == std::string_view::npos) return {};
  const size_t space = line.find_last_of(" (", end);
  const size_t begin = space == std::string_view::npos ? 0 : space + 1;
  return line.substr(begin, end - begin + 1);
}

bool LooksLikeInterface(std::string_view word) {
  constexpr std::array kBegins = {"eth", "en", "ib", "bond", "wl", "roce", "hsn", "em"};
  const bool begins =
      std::any_of(kBegins.begin(), kBegins.end(), [&](const char* begin) { return word.starts_with(begin); });
  const bool by_slot = word.size() > 2 && word[0] == 'p' && word[1] >= '0' && word[1] <= '9';  // "p1p2"
  return (begins || by_slot) && word.size() <= 15 && word.find_first_of("0123456789") != std::string_view::npos &&
         word.find('.') == std::string_view::npos;
}

// The last word before the text, or the first behind it, that an interface may be called.
std::string_view InterfaceNear(std::string_view line, size_t at) {
  std::string_view found;
  for (const std::string_view word : Words(line.substr(0, at)))
    if (LooksLikeInterface(Trimmed(word))) found = Trimmed(word);
  if (!found.empty()) return found;
  for (const std::string_view word : Words(line.substr(at)))
    if (LooksLikeInterface(Trimmed(word))) return Trimmed(word);
  return Trimmed(WordBefore(line, at));
}

std::string SubjectOf(std::string_view line, const Rule& rule, size_t first, size_t second) {
  std::string_view subject;
  switch (rule.named) {
    case Named::kNobody:
      break;
    case Named::kBehindFirst:
      subject = Trimmed(WordAt(line, first + std::string_view(rule.first).size()));
      break;
    case Named::kBehindSecond:
      subject = Trimmed(WordAt(line, second + std::string_view(rule.second).size()));
      break;
    case Named::kBeforeFirst:
      subject = Trimmed(WordBefore(line, first));
      break;
    case Named::kFirstWord: {
      const std::string_view word = WordAt(line, 0);
      // "pcieport 0000:00:1c.0: ...", "sd 0:0:0:0: ...": the driver first, the device next.
      const bool driver = !word.ends_with(':') && (line.starts_with("pcieport ") || line.starts_with("sd "));
      subject = Trimmed(driver ? WordAt(line, word.size() + 1) : word);
      break;
    }
    case Named::kInterface:
      subject = InterfaceNear(line, first);
      break;
  }
  if (subject.find('[') > 0) subject = subject.substr(0, subject.find('['));  // "python3[812]": of the program
  return std::string(subject.empty() ? "kernel" : subject.substr(0, 64));
}

std::optional<LogEvent> Apply(std::span<const Rule> rules, std::string_view line, std::string_view names) {
  for (const Rule& rule : rules) {
    const size_t first = line.find(rule.first);
    if (first == std::string_view::npos) continue;
    const size_t behind = first + std::string_view(rule.first).size();
    const size_t second = rule.second == nullptr ? behind : line.find(rule.second, behind);
    if (second == std::string_view::npos) continue;
    if (rule.unless != nullptr && line.find(rule.unless) != std::string_view::npos) continue;
    return LogEvent{rule.item, SubjectOf(names, rule, first, second), rule.fault, rule.heals};
  }
  return std::nullopt;
}

// "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, ..."; an NVSwitch says SXid, and whether it was fatal.
std::optional<LogEvent> ClassifyXid(std::string_view line) {
  const size_t xid = line.find("Xid (PCI:");
  if (xid == std::string_view::npos) return std::nullopt;
  const size_t begin = xid + 9, end = line.find("): ", begin);
  if (end == std::string_view::npos) return std::nullopt;
  const std::optional<uint64_t> number = ParseNumber(line.substr(end + 3));
  if (!number) return std::nullopt;
  const std::string bus(line.substr(begin, std::min<size_t>(end - begin, 32)));
  if (xid > 0 && line[xid - 1] == 'S') {
    const bool fatal =
        line.find("Fatal", end) != std::string_view::npos && line.find("Non-fatal", end) == std::string_view::npos;
    return LogEvent{"kernel_xid", "NVSwitch " + bus, fatal ? kMachine : kWarning};
  }
  const FaultClass fault = XidClass(*number);
  return LogEvent{fault == kSoftware ? "kernel_application" : "kernel_xid", "GPU " + bus, fault};
}

// "Machine Check: 0 Bank 8: 8c00004000010091": bit 61 of the status is UC, the error was not corrected.
std::optional<LogEvent> ClassifyBank(std::string_view line) {
  const size_t check = line.find("Machine Check: ");
  const size_t bank = check == std::string_view::npos ? check : line.find(" Bank ", check);
  const size_t colon = bank == std::string_view::npos ? bank : line.find(": ", bank);
  if (colon == std::string_view::npos) return std::nullopt;
  const auto status = ParseNumber("0x" + std::string(line.substr(colon + 2, 16)));
  if (!status) return std::nullopt;
  const bool uncorrected = ((*status >> 61) & 1) != 0;
  return LogEvent{uncorrected ? "kernel_machine_check" : "kernel_corrected", "kernel",
                  uncorrected ? kMachine : kWarning};
}

// "ata3.00: failed command: READ FPDMA QUEUED". A link that is down is an empty port more often than a fault.
std::optional<LogEvent> ClassifyAta(std::string_view line) {
  if (line.size() < 4 || !line.starts_with("ata") || line[3] < '0' || line[3] > '9') return std::nullopt;
  const std::string port(line.substr(0, line.find_first_of(".:")));
  const auto says = [line](std::string_view text) { return line.find(text) != std::string_view::npos; };
  if (says(": failed command: ") || says(": exception Emask") || says(": disabled"))
    return LogEvent{"kernel_disk", port, kMachine};
  if (says(": hard resetting link")) return LogEvent{"kernel_disk", port, kWarning};
  return std::nullopt;
}

// Without a medium, drives fail every request.
bool IsRemovable(std::string_view disk) { return disk.starts_with("sr") || disk.starts_with("fd"); }

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  return lower;
}

}  // namespace

// After NVIDIA's catalogue of Xids and what clusters report of them.
FaultClass XidClass(uint64_t xid) {
  constexpr std::array kOfPrograms = {8, 13, 31, 32, 43, 45, 68, 69, 137};
  // Memory 48 63 64 94 95 140 156-158 160 171 172, NVLink 74 144-150, bus 79, GSP 119 120, controllers 46 61 62,
  // power 54, C2C, SPI and inforom 110 122-126 136, start 143, hung 109.
  constexpr std::array kOfMachines = {46,  48,  54,  61,  62,  63,  64,  74,  79,  94,  95,  109, 110,
                                      119, 120, 122, 123, 124, 125, 126, 136, 140, 143, 144, 145, 146,
                                      147, 148, 149, 150, 151, 155, 156, 157, 158, 160, 171, 172};
  const auto is = [xid](int one) { return xid == static_cast<uint64_t>(one); };
  if (std::any_of(kOfPrograms.begin(), kOfPrograms.end(), is)) return kSoftware;
  return std::any_of(kOfMachines.begin(), kOfMachines.end(), is) ? kMachine : kWarning;
}

std::optional<LogEvent> ClassifyKernelLine(std::string_view line) {
  if (auto event = ClassifyXid(line)) return event;
  if (auto event = ClassifyBank(line)) return event;
  if (auto event = ClassifyAta(line)) return event;
  std::optional<LogEvent> event = Apply(kRules, line, line);
  if (event && event->item == "kernel_disk" && IsRemovable(event->subject)) return std::nullopt;
  return event;
}

std::optional<LogEvent> ClassifyOtherLine(std::string_view line) { return Apply(kOtherRules, Lower(line), line); }

std::optional<KernelRecord> ParseKernelRecord(std::string_view record) {
  const size_t semicolon = record.find(';');
  if (semicolon == std::string_view::npos) return std::nullopt;
  std::array<uint64_t, 3> number{};
  std::string_view rest = record.substr(0, semicolon);
  for (uint64_t& value : number) {
    const size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    const bool digits = !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
    const auto parsed = digits ? ParseNumber(word) : std::nullopt;
    if (!parsed) return std::nullopt;
    value = *parsed;
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  constexpr uint64_t kMostMicros = uint64_t{1} << 53;
  if (number[0] > 8 * 1024 || number[2] > kMostMicros) return std::nullopt;
  const std::string_view text = record.substr(semicolon + 1);
  return KernelRecord{static_cast<int>(number[0] % 8), static_cast<int>(number[0] / 8), number[1],
                      Nanos{static_cast<int64_t>(number[2]) * 1000}, text.substr(0, text.find('\n'))};
}

std::string_view KernelText(std::string_view line) {
  if (const auto record = ParseKernelRecord(line)) return record->text;
  const size_t host = line.find(" kernel: ");
  if (host != std::string_view::npos) line.remove_prefix(host + 9);
  // "<3>" and "[   12.345678] ", with a thread's or a CPU's number behind it in some.
  while (!line.empty() && (line.front() == '[' || line.front() == '<')) {
    const size_t end = line.find(line.front() == '[' ? ']' : '>');
    if (end == std::string_view::npos) break;
    const std::string_view inside = line.substr(1, end - 1);
    const bool date = inside.size() == 24 && inside[13] == ':' && inside[16] == ':';  // of dmesg -T
    if (!date && inside.find_first_not_of("0123456789. TC") != std::string_view::npos) break;
    line.remove_prefix(std::min(line.find_first_not_of(' ', end + 1), line.size()));
  }
  return line;
}

}  // namespace lockstep::inspect
