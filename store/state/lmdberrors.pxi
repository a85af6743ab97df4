# What LMDB's codes mean as exceptions: a part of `lmdbkernel.pyx`.

class Error(Exception):
    pass


cdef dict _KINDS = {}


def _kind(name, int code, hint=""):
    made = type(name, (Error,), {"__module__": __name__})
    _KINDS[code] = (made, f" ({hint})" if hint else "")
    return made


KeyExistsError = _kind("KeyExistsError", MDB_KEYEXIST)
NotFoundError = _kind("NotFoundError", MDB_NOTFOUND)
PageNotFoundError = _kind("PageNotFoundError", MDB_PAGE_NOTFOUND)
CorruptedError = _kind("CorruptedError", MDB_CORRUPTED)
PanicError = _kind("PanicError", MDB_PANIC)
VersionMismatchError = _kind("VersionMismatchError", MDB_VERSION_MISMATCH)
InvalidError = _kind("InvalidError", MDB_INVALID)
MapFullError = _kind(
    "MapFullError", MDB_MAP_FULL, "Please use a larger Environment(map_size=) parameter"
)
DbsFullError = _kind(
    "DbsFullError", MDB_DBS_FULL, "Please use a larger Environment(max_dbs=) parameter"
)
ReadersFullError = _kind(
    "ReadersFullError", MDB_READERS_FULL, "Please use a larger Environment(max_readers=) parameter"
)
TlsFullError = _kind("TlsFullError", MDB_TLS_FULL)
TxnFullError = _kind(
    "TxnFullError", MDB_TXN_FULL, "Please do less work within your transaction"
)
CursorFullError = _kind("CursorFullError", MDB_CURSOR_FULL)
PageFullError = _kind("PageFullError", MDB_PAGE_FULL)
MapResizedError = _kind("MapResizedError", MDB_MAP_RESIZED)
IncompatibleError = _kind("IncompatibleError", MDB_INCOMPATIBLE)
BadRslotError = _kind("BadRslotError", MDB_BAD_RSLOT)
BadTxnError = _kind("BadTxnError", MDB_BAD_TXN)
BadValsizeError = _kind("BadValsizeError", MDB_BAD_VALSIZE)
BadDbiError = _kind("BadDbiError", MDB_BAD_DBI)
ReadonlyError = _kind("ReadonlyError", errno.EACCES)
InvalidParameterError = _kind("InvalidParameterError", errno.EINVAL)
LockError = _kind("LockError", errno.EAGAIN)
MemoryError = _kind("MemoryError", errno.ENOMEM)
DiskError = _kind("DiskError", errno.ENOSPC)


cdef object failed(str what, int code):
    """The exception for LMDB's code."""
    kind, hint = _KINDS.get(code, (Error, ""))
    return kind(f"{what}: {mdb_strerror(code).decode('utf-8', 'replace')}{hint}")


cdef object gone():
    return Error("Attempt to operate on closed/deleted/dropped object.")
