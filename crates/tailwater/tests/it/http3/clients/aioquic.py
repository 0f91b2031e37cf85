"""Requests with aioquic. Argument: port of the server. The certificate of its authority is ca.crt, the content of /big is in big."""
import asyncio
import sys

try:
    from aioquic.asyncio import QuicConnectionProtocol, connect
    from aioquic.h3.connection import H3Connection
    from aioquic.h3.events import DataReceived, HeadersReceived
    from aioquic.quic.configuration import QuicConfiguration
except ImportError:
    sys.exit("absent: no aioquic")
PORT = int(sys.argv[1])


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http, self.requests = H3Connection(self._quic), {}

    async def request(self, method, path, body=b""):
        stream = self._quic.get_next_available_stream_id()
        done = asyncio.get_running_loop().create_future()
        self.requests[stream] = [0, b"", done]
        head = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        self.http.send_headers(stream, [(n.encode(), v.encode()) for n, v in head], end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        return await asyncio.wait_for(done, 30)

    def quic_event_received(self, event):
        for came in self.http.handle_event(event):
            request = self.requests[came.stream_id]
            if isinstance(came, HeadersReceived):
                request[0] = int(dict(came.headers)[b":status"])
            elif isinstance(came, DataReceived):
                request[1] += came.data
            if came.stream_ended:
                request[2].set_result((request[0], request[1]))


async def main():
    tickets = []
    settings = dict(is_client=True, alpn_protocols=["h3"], server_name="localhost", cafile="ca.crt")

    def connected(**more):
        return connect("127.0.0.1", PORT, configuration=QuicConfiguration(**settings, **more),
                       create_protocol=Client, session_ticket_handler=tickets.append)

    async with connected() as client:
        status, body = await client.request("GET", "/protocol")
        print("/protocol", status, body.decode())
        status, body = await client.request("GET", "/big")
        print("/big", status, body == open("big", "rb").read())
        print("/none", (await client.request("GET", "/none"))[0])
        status, body = await client.request("POST", "/length", b"x" * 300_000)
        print("/length", status, body.decode())
        client.request_key_update()
        client.change_connection_id()
        all_of = await asyncio.gather(*(client.request("GET", f"/n?n={n}") for n in range(50)))
        print("parallel", all(body == str(n).encode() for n, (_, body) in enumerate(all_of)))
    async with connected(session_ticket=tickets[0]) as client:
        await client.wait_connected()
        status, body = await client.request("GET", "/protocol")
        print("resumed", client._quic.tls.session_resumed, status, body.decode())


asyncio.run(main())
