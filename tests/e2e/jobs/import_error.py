"""A script that fails at its first import on every rank: restarting cannot help."""
import a_module_that_nobody_has_written

a_module_that_nobody_has_written.main()
