"""What measuring on every device shares: operands, verification, the isolated process."""
