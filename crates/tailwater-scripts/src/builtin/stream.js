// The session object `s` of stream.
(function (host, core) {
    'use strict';

    const EVENTS = {
        upload: { fromClient: true, isText: true },
        download: { fromClient: false, isText: true },
        upstream: { fromClient: true, isText: false },
        downstream: { fromClient: false, isText: false },
    };
    // Codes of s.done(): those of nginx, and statuses.
    const CODE_MIN = -6;
    const CODE_MAX = 503;
    // Callbacks of each call: [from the upstream server, from the client].
    const listeners = new Map();
    // Direction of the event whose callback runs; undefined in other callbacks.
    let direction;

    function subscribe(call, list) {
        host.subscribe(list[1] !== undefined, list[0] !== undefined);
        if (list[0] === undefined && list[1] === undefined) {
            listeners.delete(call);
        }
    }

    function send(data, options, fromClient) {
        if (!host.isFilter()) {
            throw new TypeError('cannot send buffer in this handler');
        }
        host.streamSend(data ?? '', fromClient, flag(options?.last), flag(options?.flush));
    }

    function flag(value) {
        return value === undefined ? undefined : Boolean(value);
    }

    class Session {
        #cache = {};

        get [Symbol.toStringTag]() { return 'Stream Session'; }
        get remoteAddress() { return host.text(5, 0); }
        get status() { return host.status(0); }
        get variables() { return this.#cache.variables ??= core.part('request').variables(0, false); }
        get rawVariables() { return this.#cache.rawVariables ??= core.part('request').variables(0, true); }

        jsVarNames(prefix) { return core.part('request').variableNames(prefix); }
        allow(code = 0) { this.done(code); }
        decline(code = -5) { this.done(code); }
        deny(code = 403) { this.done(code); }
        done(code = 0) {
            const value = Math.trunc(Number(code)) || 0;
            if (value < CODE_MIN || value > CODE_MAX) {
                throw new RangeError('code is out of range');
            }
            if (host.isFilter()) {
                throw new TypeError('should not be called while filtering');
            }
            listeners.delete(host.call());
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
        send(data, options) {
            const fromUpstream = options?.from_upstream;
            if (fromUpstream === undefined && direction === undefined && host.isFilter()) {
                throw new TypeError('from_upstream flag is expected when called asynchronously');
            }
            send(data, options, fromUpstream === undefined ? direction : !fromUpstream);
        }
        sendUpstream(data, options) { send(data, options, true); }
        sendDownstream(data, options) { send(data, options, false); }
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
                // A piece that has crossed the end of the subscription passes.
                if (host.isFilter()) {
                    host.streamSend(data, fromClient, isLast, undefined);
                }
                return undefined;
            }
            direction = fromClient;
            const flags = { last: isLast, from_upstream: !fromClient };
            return listener.callback(listener.isText ? host.decode(data) : core.buffer(data), flags);
        },
        leave() { direction = undefined; },
        end(call) { listeners.delete(call); },
        reset() {
            listeners.clear();
            direction = undefined;
            session = undefined;
        },
    };
})
