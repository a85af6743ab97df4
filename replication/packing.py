"""Numbers of a fixed width, as protocols write them: the highest byte first, or the lowest."""

from __future__ import annotations

import struct
from typing import Final

U16_HIGH: Final = struct.Struct(">H")
U32_HIGH: Final = struct.Struct(">I")
U64_HIGH: Final = struct.Struct(">Q")
U16_LOW: Final = struct.Struct("<H")
U32_LOW: Final = struct.Struct("<I")
U64_LOW: Final = struct.Struct("<Q")
I32_LOW: Final = struct.Struct("<i")
