"""A program on a pseudo-terminal, and what a person would see of it. Knows the few escape sequences that Lockstep uses;
any other is an error."""
import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time

from harness import take_terminal

TOKEN = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|\x1b.?|[^\x1b]")
TORN = re.compile(r"\x1b(\[[?\d;]*)?$")  # a sequence whose end comes with the next read
LIMIT_S = 30


class Terminal:
    def __init__(self, test, command, rows=24, columns=80, env=None):
        self.test = test
        self.ours, self.theirs = os.openpty()
        self.mode_before = termios.tcgetattr(self.theirs)
        self.resize(rows, columns)
        self.raw, self.torn, self.row, self.column = "", "", 0, 0
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        files = dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)
        self.process = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=take_terminal, **files)
        test.addCleanup(self._clear_away)

    def _clear_away(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

    def resize(self, rows, columns):
        """Tells the program, too: the kernel sends SIGWINCH."""
        self.lines = [" " * columns for _ in range(rows)]
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.ours, keys.encode())

    def screen(self):
        return "\n".join(line.rstrip() for line in self.lines)

    def wait(self, what, seen):
        """Until seen(screen) is true; returns the screen."""
        deadline = time.monotonic() + LIMIT_S
        while not seen(self.screen()):
            if time.monotonic() > deadline or not self._read():
                raise AssertionError(f"waited in vain for: {what}\n{self.screen()}")
        return self.screen()

    def end(self):
        """Reads on until the program has ended; returns its exit status. The terminal must be as it was."""
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read()
        self._read()
        self.test.assertEqual(self.mode_before, termios.tcgetattr(self.theirs))
        last = {mode: self.raw.rfind(mode) for mode in
                ("\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h", "\x1b[?7l", "\x1b[?7h")}
        self.test.assertLess(last["\x1b[?1049h"], last["\x1b[?1049l"], "the alternate screen was left on")
        self.test.assertLess(last["\x1b[?25l"], last["\x1b[?25h"], "the cursor was left hidden")
        self.test.assertLess(last["\x1b[?7l"], last["\x1b[?7h"], "lines were left without wrapping")
        return self.process.poll()

    def _read(self):
        """False: the program has ended and all is read."""
        if not select.select([self.ours], [], [], 0.1)[0]:
            return self.process.poll() is None
        new = self.decoder.decode(os.read(self.ours, 65536))
        self.raw += new
        text = self.torn + new
        torn = TORN.search(text)
        self.torn = torn[0] if torn else ""
        self._show(text[:len(text) - len(self.torn)])
        return True

    def _show(self, text):
        for token in TOKEN.finditer(text):
            arguments, command = token[1], token[2]
            if command:
                self._obey(command, arguments)
            elif token[0].startswith("\x1b"):
                raise AssertionError(f"an escape sequence that no terminal needs to know: {token[0]!r}")
            else:
                self._put(token[0])

    def _obey(self, command, arguments):
        if command == "H":
            self.row, self.column = (int(number) - 1 for number in arguments.split(";"))
        elif command == "J":
            self.lines = [" " * len(line) for line in self.lines]
        elif command == "K":
            line = self.lines[self.row]
            self.lines[self.row] = line[:self.column] + " " * (len(line) - self.column)
        elif command not in "mhl":
            raise AssertionError(f"an unknown escape sequence: {arguments}{command}")

    def _put(self, letter):
        if self.row < len(self.lines):
            line = self.lines[self.row]
            self.lines[self.row] = (line[:self.column] + letter + line[self.column + 1:])[:len(line)]
        self.column += 1
