// Parts of every context: promises of operations, timers, exceptions, texts and bytes. `host` has the native functions.
(function (host) {
    'use strict';

    const toBase64 = Uint8Array.prototype.toBase64;
    const fromBase64 = Uint8Array.fromBase64;
    const apply = Reflect.apply;
    const isWellFormed = String.prototype.toWellFormed;
    const TypeErrorClass = TypeError;

    const parts = new Map();
    // Rejected promises that are remembered; the first one that nobody handles is reported.
    const REJECTIONS_MAX = 1000;
    const pending = new Map();
    const timers = new Map();
    const rejections = new Map();
    const calls = new Map();
    const exits = [];
    let subject;
    // Set once something has to be forgotten at the end of the request, beside its object.
    let isUsed = false;

    class SharedMemoryError extends Error {
        get name() { return 'SharedMemoryError'; }
    }

    function text(value) {
        return apply(isWellFormed, `${value}`, []);
    }

    function isBinary(value) {
        return value instanceof ArrayBuffer || ArrayBuffer.isView(value);
    }

    function view(value) {
        return value instanceof ArrayBuffer ? new Uint8Array(value)
            : new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    }

    // Base64 of binary values, undefined for all others.
    function encode(value) {
        return isBinary(value) ? apply(toBase64, view(value), []) : undefined;
    }

    function decode(base64) {
        return apply(fromBase64, Uint8Array, [base64]);
    }

    function part(name) {
        let value = parts.get(name);
        if (value === undefined) {
            value = host.part(name)(host, core);
            parts.set(name, value);
        }
        return value;
    }

    function wait(token) {
        isUsed = true;
        return new Promise((resolve, reject) => pending.set(token, { resolve, reject }));
    }

    function error(kind, message, file) {
        switch (kind) {
        case 'TypeError':
            return new TypeErrorClass(message);
        case 'SharedMemoryError':
            return new SharedMemoryError(message);
        default: {
            const object = new Error(message);
            if (file) {
                Object.assign(object, file);
            }
            return object;
        }
        }
    }

    function makeSubject() {
        switch (host.subject()) {
        case 'http':
            return part('request').make();
        case 'stream':
            isUsed = true;
            return part('stream').make();
        default:
            return part('request').periodic();
        }
    }

    const core = {
        SharedMemoryError, text, isBinary, view, encode, decode, part, wait, error,

        // Buffer of njs over these bytes, which nobody else uses.
        buffer(bytes) {
            return bytes === undefined ? undefined : part('buffer').wrap(bytes);
        },
        lazy(object, name, make) {
            Object.defineProperty(object, name, {
                configurable: true,
                enumerable: false,
                get() {
                    const value = make();
                    Object.defineProperty(object, name, { value, writable: true, configurable: true, enumerable: false });
                    return value;
                },
                set(value) {
                    Object.defineProperty(object, name, { value, writable: true, configurable: true, enumerable: false });
                },
            });
        },
        find(path) {
            let value = globalThis;
            for (const name of path.split('.')) {
                value = value?.[name];
            }
            return typeof value === 'function' ? value : undefined;
        },
        // Line and file of the definition of a function.
        place(path) {
            const fn = core.find(path);
            return typeof fn?.fileName === 'string' ? `${fn.lineNumber >>> 0}:${fn.fileName}` : undefined;
        },
        deliver(token, isDone, value) {
            const promise = pending.get(token);
            pending.delete(token);
            parts.get('stream')?.leave();
            if (promise) {
                (isDone ? promise.resolve : promise.reject)(value);
            }
        },
        timer(id) {
            const timer = timers.get(id);
            timers.delete(id);
            parts.get('stream')?.leave();
            if (timer) {
                timer.callback(...timer.values);
            }
        },
        rejected(promise, reason, isHandled) {
            if (isHandled) {
                rejections.delete(promise);
            } else if (rejections.size < REJECTIONS_MAX) {
                isUsed = true;
                rejections.set(promise, reason);
            }
        },
        takeRejection() {
            for (const reason of rejections.values()) {
                rejections.clear();
                return [reason];
            }
            return undefined;
        },
        start(call, fn, isFilter) {
            if (subject === undefined) {
                subject = makeSubject();
            } else {
                parts.get('request')?.refresh(subject);
            }
            if (isFilter) {
                isUsed = true;
                calls.set(call, fn);
                return undefined;
            }
            return fn(subject);
        },
        onExit(callback) {
            isUsed = true;
            exits.push(callback);
            host.setExitCallbacks();
        },
        exit() {
            for (const callback of exits.splice(0)) {
                callback();
            }
        },
        event(call, data, isLast, fromClient) {
            if (host.subject() === 'stream') {
                return part('stream').event(call, data, isLast, fromClient);
            }
            const fn = calls.get(call);
            return fn ? fn(subject, host.isText() ? host.decode(data) : core.buffer(data), { last: isLast }) : undefined;
        },
        end(call) {
            calls.delete(call);
            parts.get('stream')?.end(call);
        },
        reset() {
            subject = undefined;
            if (!isUsed) {
                return;
            }
            isUsed = false;
            exits.length = 0;
            pending.clear();
            timers.clear();
            rejections.clear();
            calls.clear();
            parts.get('stream')?.reset();
        },
    };

    const MODULES = new Set(['buffer', 'crypto', 'fs', 'querystring', 'xml', 'zlib']);
    Object.defineProperty(globalThis, Symbol.for('tailwater:module'), {
        value: (name) => MODULES.has(name) ? part(name).module : undefined,
    });
    // Scripts for the old engine of njs load modules by a function.
    globalThis.require = function require(name) {
        if (!MODULES.has(name)) {
            throw new Error(`Cannot load module "${name}"`);
        }
        return part(name).module;
    };
    globalThis.SharedMemoryError = SharedMemoryError;
    globalThis.setTimeout = function setTimeout(callback, delay, ...values) {
        if (typeof callback !== 'function') {
            throw new TypeErrorClass('first arg must be a function');
        }
        const id = host.setTimer(Number(delay) || 0);
        isUsed = true;
        timers.set(id, { callback, values });
        return id;
    };
    globalThis.setImmediate = function setImmediate(callback, ...values) {
        return globalThis.setTimeout(callback, 0, ...values);
    };
    globalThis.clearTimeout = function clearTimeout(id) {
        if (timers.delete(id)) {
            host.clearTimer(id);
        }
    };
    core.lazy(globalThis, 'console', () => part('console'));
    core.lazy(globalThis, 'ngx', () => part('ngx'));
    core.lazy(globalThis, 'njs', () => part('njs'));
    core.lazy(globalThis, 'process', () => part('process'));
    core.lazy(globalThis, 'Buffer', () => part('buffer').Buffer);
    for (const name of ['TextEncoder', 'TextDecoder']) {
        core.lazy(globalThis, name, () => part('encoding')[name]);
    }
    for (const name of ['Headers', 'Request', 'Response']) {
        core.lazy(globalThis, name, () => part('fetch')[name]);
    }
    core.lazy(globalThis, 'crypto', () => part('webcrypto'));
    core.lazy(globalThis, 'CryptoKey', () => part('keys').CryptoKey);
    return core;
})
