"""What a statement does: executed in layers, compiled or by the reference engine."""
