"""Multi-token prediction (MTP): draft layers that come with a checkpoint."""

from .load import MtpLayout, load_mtp, read_mtp_layout
from .source import MtpSource, mtp_bytes

__all__ = ["MtpLayout", "MtpSource", "load_mtp", "mtp_bytes", "read_mtp_layout"]
