// The session object `s` of stream.
(function (host, core) {
    'use strict';

    const EVENTS = {
        upload: { fromClient: true, isText: true },
        download: { fromClient: false, isText: true },
        upstream: { fromClient: true, isText: false },
        downstream: { fromClient: false, isText: false },
    };
    // Callbacks of each call: [from the upstream server, from the client].
    const listeners = new Map();
    let direction = true;

    function subscribe(call, list) {
        host.subscribe(list[1] !== undefined, list[0] !== undefined);
        if (list[0] === undefined && list[1] === undefined) {
            listeners.delete(call);
        }
    }

    class Session {
        #cache = {};

        get [Symbol.toStringTag]() { return 'Stream Session'; }
        get remoteAddress() { return host.text(5, 0); }
        get status() { return host.status(0); }
        get variables() { return this.#cache.variables ??= core.part('request').variables(0, false); }
        get rawVariables() { return this.#cache.rawVariables ??= core.part('request').variables(0, true); }

        allow() { this.done(0); }
        decline() { this.done(-5); }
        deny() { this.done(403); }
        done(code = 0) {
            const value = Math.trunc(Number(code));
            if (!(value === -1 || value === -5 || (value >= 0 && value <= 999))) {
                throw new RangeError('code is out of range');
            }
            if (host.isFilter()) {
                throw new TypeError('should not be called while filtering');
            }
            host.streamDone(value);
        }
        on(name, callback) {
            const event = Object.hasOwn(EVENTS, name) ? EVENTS[name] : undefined;
            if (event === undefined) {
                throw new TypeError(`unknown event "${core.text(name)}"`);
            }
            if (typeof callback !== 'function') {
                throw new TypeError('callback is not a function');
            }
            const call = host.call();
            const list = listeners.get(call) ?? [undefined, undefined];
            const place = Number(event.fromClient);
            if (list[place] !== undefined) {
                throw new TypeError(`event handler "${name}" is already set`);
            }
            const other = list[1 - place];
            if (other !== undefined && other.isText !== event.isText) {
                throw new TypeError('mixing string and buffer events is not allowed');
            }
            list[place] = { callback, isText: event.isText };
            listeners.set(call, list);
            subscribe(call, list);
        }
        off(name) {
            const event = Object.hasOwn(EVENTS, name) ? EVENTS[name] : undefined;
            if (event === undefined) {
                throw new TypeError(`unknown event "${core.text(name)}"`);
            }
            const call = host.call();
            const list = listeners.get(call);
            if (list) {
                list[Number(event.fromClient)] = undefined;
                subscribe(call, list);
            }
        }
        send(data, options = {}) {
            const fromUpstream = options?.from_upstream;
            host.streamSend(data, fromUpstream === undefined ? direction : !fromUpstream, options?.last, options?.flush);
        }
        setReturnValue(value) { host.setReturnValue(value); }
    }
    for (const [name, number] of [['log', 1], ['warn', 2], ['error', 3]]) {
        Object.defineProperty(Session.prototype, name, { value: core.part('request').level(number), writable: true, configurable: true });
    }

    let session;
    return {
        make: () => session = new Session(),
        event(call, data, isLast, fromClient) {
            const listener = listeners.get(call)?.[Number(fromClient)];
            if (listener === undefined) {
                return undefined;
            }
            direction = fromClient;
            return listener.callback(listener.isText ? host.decode(data) : core.buffer(data), { last: isLast });
        },
        end(call) { listeners.delete(call); },
        reset() {
            listeners.clear();
            session = undefined;
        },
    };
})
