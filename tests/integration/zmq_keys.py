"""CURVE key files for the tests, made by libzmq itself."""
import ctypes
import ctypes.util


def write(path):
    """Writes a key pair in the daemons' format; returns the public key."""
    zmq = ctypes.CDLL(ctypes.util.find_library("zmq") or "libzmq.so.5")
    public, secret = ctypes.create_string_buffer(41), ctypes.create_string_buffer(41)
    assert zmq.zmq_curve_keypair(public, secret) == 0
    path.write_text(f"public {public.value.decode()}\nsecret {secret.value.decode()}\n")
    path.chmod(0o400)
    return public.value.decode()
