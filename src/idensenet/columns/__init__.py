"""What the columns of a table are: real, on a grid, or nominal. A model that was trained on a table saves them."""

from idensenet.columns.columns import Column, Columns, Names, Pair

__all__ = ["Column", "Columns", "Names", "Pair"]
