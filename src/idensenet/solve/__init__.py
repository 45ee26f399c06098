"""x + g(x) = y: Picard, Anderson and Newton, one loop, and a report of how well it went."""

from idensenet.solve.anderson import Anderson
from idensenet.solve.newton import Newton
from idensenet.solve.picard import Picard
from idensenet.solve.solution import Solution, Status
from idensenet.solve.solver import Solver, solve

__all__ = ["Anderson", "Newton", "Picard", "Solution", "Solver", "Status", "solve"]
