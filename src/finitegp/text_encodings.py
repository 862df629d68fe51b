"""Which names are encodings of text that files can be read in."""

from __future__ import annotations

import codecs
import io
from array import array


def is_text_encoding(name: str) -> bool:
    r"""Whether bytes can be read as text in this encoding: not so for codecs such as base64, zip or punycode.

    Example:
        >>> [is_text_encoding(name) for name in ("latin-1", "utf-16", "base64", "punycode", "no such", "\0")]
        [True, True, False, False, False, False]
    """
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=name)
        codecs.getincrementaldecoder(name)().decode(array("B", b"a,b\n"))  # what is no bytes, as Arrow passes it
    except UnicodeError:
        return name != "undefined"  # these bytes are none of its, but others may be
    except (LookupError, ValueError, TypeError, AttributeError):
        return False
    return True
