"""Requests with libcurl over HTTP/3 only. Argument: port of the server. The certificate of its authority is ca.crt, the content of /big is in big."""
import io
import sys

try:
    import pycurl
except ImportError:
    sys.exit("absent: no pycurl")
HTTP3_FEATURE, ONLY_HTTP3 = 1 << 25, 31
if not pycurl.version_info()[4] & HTTP3_FEATURE:
    sys.exit("absent: libcurl without HTTP/3")
PORT = sys.argv[1]


def handle(path, out, body=None):
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, f"https://localhost:{PORT}{path}")
    curl.setopt(pycurl.RESOLVE, [f"localhost:{PORT}:127.0.0.1"])
    curl.setopt(pycurl.CAINFO, "ca.crt")
    curl.setopt(pycurl.HTTP_VERSION, ONLY_HTTP3)
    curl.setopt(pycurl.PIPEWAIT, 1)
    curl.setopt(pycurl.TIMEOUT, 30)
    curl.setopt(pycurl.WRITEDATA, out)
    if body is not None:
        curl.setopt(pycurl.POSTFIELDS, body)
    return curl


for path, body in [("/protocol", None), ("/big", None), ("/none", None), ("/length", "x" * 300_000)]:
    out = io.BytesIO()
    curl = handle(path, out, body)
    curl.perform()
    said = out.getvalue() == open("big", "rb").read() if path == "/big" else out.getvalue().decode()
    print(path, curl.getinfo(pycurl.RESPONSE_CODE), said)

# Many requests at once on one connection.
multi, outs = pycurl.CurlMulti(), []
multi.setopt(pycurl.M_PIPELINING, 2)
for n in range(50):
    out = io.BytesIO()
    curl = handle(f"/n?n={n}", out)
    outs.append((curl, out))
    multi.add_handle(curl)
running = 1
while running:
    _, running = multi.perform()
    multi.select(1.0)
print("parallel", all(out.getvalue() == str(n).encode() for n, (_, out) in enumerate(outs)))
