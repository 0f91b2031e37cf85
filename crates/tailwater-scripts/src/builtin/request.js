// The request object `r` of http, and the object of `js_periodic`.
(function (host, core) {
    'use strict';

    const METHOD = 0, URI = 1, ARGS = 2, REQUEST_LINE = 3, HTTP_VERSION = 4, REMOTE_ADDRESS = 5;
    const IN = 0, OUT = 1;
    const SINGLE_IN = new Set(['content-type', 'etag', 'from', 'max-forwards', 'referer', 'proxy-authorization', 'user-agent']);
    const SINGLE_OUT = new Set(['age', 'etag', 'expires', 'retry-after', 'content-encoding', 'content-length', 'content-type', 'date',
        'last-modified', 'location', 'server']);
    // Of several values that a script sets, the last one counts.
    const LAST_OUT = new Set(['content-encoding', 'content-length', 'content-type', 'date', 'last-modified', 'location', 'server']);
    const REDIRECTS = new Set([301, 302, 303, 307, 308]);

    function pairs(which, subject) {
        const list = host.fields(which, subject);
        const result = [];
        for (let i = 0; i < list.length; i += 2) {
            result.push([list[i], list[i + 1]]);
        }
        return result;
    }

    function field(which, subject, name) {
        const key = name.toLowerCase();
        const list = host.fieldValues(which, subject, key);
        if (list.length === 0) {
            return undefined;
        }
        if (which === OUT && key === 'set-cookie') {
            return list;
        }
        if (list.length === 1 || (which === IN ? SINGLE_IN : SINGLE_OUT).has(key)) {
            return list[0];
        }
        return list.join(key === 'cookie' ? '; ' : ', ');
    }

    function names(which, subject) {
        const seen = new Set();
        const result = [];
        for (const [name] of pairs(which, subject)) {
            const key = name.toLowerCase();
            if (!seen.has(key)) {
                seen.add(key);
                result.push(name);
            }
        }
        return result;
    }

    function setField(name, value) {
        if (!/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)) {
            throw new TypeError('invalid header name');
        }
        let list = (Array.isArray(value) ? value : [value]).map((item) => item === undefined || item === null ? '' : core.text(item));
        for (const item of list) {
            if (/[\0\r\n]/.test(item)) {
                throw new TypeError('invalid header value');
            }
        }
        const key = name.toLowerCase();
        if (list.length > 1 && LAST_OUT.has(key)) {
            list = [list[list.length - 1]];
        }
        list = list.filter((item) => item !== '');
        if (key === 'content-length' && list.length && !/^[0-9]+$/.test(list[0])) {
            throw new TypeError('failed converting argument to positive integer');
        }
        host.setField(name, list);
    }

    // Objects whose properties are asked for one by one.
    function lookup(subject, get, keys, set) {
        return new Proxy(Object.create(null), {
            get: (_, name) => typeof name === 'string' ? get(name) : undefined,
            has: (_, name) => typeof name === 'string' && get(name) !== undefined,
            ownKeys: () => keys(),
            getOwnPropertyDescriptor(_, name) {
                const value = typeof name === 'string' ? get(name) : undefined;
                return value === undefined ? undefined : { value, writable: set !== undefined, enumerable: true, configurable: true };
            },
            set(_, name, value) {
                if (set === undefined) {
                    throw new TypeError('Cannot assign to read-only property "' + String(name) + '"');
                }
                set(String(name), value);
                return true;
            },
            defineProperty(_, name, descriptor) {
                if (set === undefined || descriptor.get || descriptor.set) {
                    throw new TypeError('cannot define getter or setter');
                }
                set(String(name), descriptor.value);
                return true;
            },
            deleteProperty(_, name) {
                if (set !== undefined) {
                    set(String(name), []);
                }
                return true;
            },
        });
    }

    // Names of the variables of js_var that begin with a prefix.
    function variableNames(prefix = '') {
        if (typeof prefix !== 'string') {
            throw new TypeError('"prefix" must be a string');
        }
        return host.variableNames().filter((name) => name.startsWith(prefix));
    }

    function variables(subject, isRaw) {
        const get = (name) => isRaw ? core.buffer(host.rawVariable(subject, name)) : host.variable(subject, name);
        return lookup(subject, get, () => [], (name, value) => {
            if (Array.isArray(value) && value.length === 0) {
                return;
            }
            host.setVariable(subject, name, value);
        });
    }

    function integer(value) {
        const number = Number(value);
        if (!Number.isFinite(number)) {
            throw new TypeError('invalid number');
        }
        if (!Number.isSafeInteger(Math.trunc(number))) {
            throw new RangeError('number is out of range');
        }
        return Math.trunc(number);
    }

    function decodeComponent(value) {
        return host.decodeUrl(value.replaceAll('+', ' '));
    }

    function parseArgs(query) {
        const args = {};
        for (const item of query.split('&')) {
            const at = item.indexOf('=');
            const name = decodeComponent(at < 0 ? item : item.slice(0, at));
            if (name === '') {
                continue;
            }
            const value = at < 0 ? '' : decodeComponent(item.slice(at + 1));
            if (!Object.hasOwn(args, name)) {
                Object.defineProperty(args, name, { value, writable: true, enumerable: true, configurable: true });
            } else if (Array.isArray(args[name])) {
                args[name].push(value);
            } else {
                args[name] = [args[name], value];
            }
        }
        return args;
    }

    function level(number) {
        return function (message) {
            host.log(number, message);
        };
    }

    // Values that a request object keeps, and that most scripts do not need: `args`, the bytes of the body (`body`) and its form. Objects of
    // subrequests have their `parent`, the bytes of their `response`, and their lookups.
    function requestBytes(own) {
        return own?.body ?? host.requestBody();
    }

    async function readBody(own) {
        if (own.body === undefined) {
            checkReading(own);
            own.isReading = true;
            try {
                own.body = await core.wait(host.readRequestBody()) ?? new Uint8Array(0);
            } finally {
                own.isReading = false;
            }
        }
        return own.body;
    }

    function checkReading(own) {
        if (own.isReading) {
            throw new TypeError('request body is already being read');
        }
    }

    // Lookups of the main request have no state of their own: one set of them serves all requests of a context.
    const mainLookups = {};

    // Objects are made for every request: they have two fields, and everything else is made when it is asked for.
    class Request {
        #subject;
        #own;

        constructor(subject, own) {
            this.#subject = subject;
            this.#own = own;
        }

        // A later call of the same request may have other arguments, after a redirect.
        static refresh(object) {
            if (#own in object && object.#own) {
                object.#own.args = undefined;
            }
        }

        // The kept values, for a read of the body that nothing else reads.
        static #reader(object) {
            const own = object.#own ??= {};
            checkReading(own);
            return own;
        }

        get [Symbol.toStringTag]() { return 'Request'; }
        get method() { return host.text(METHOD, this.#subject); }
        get uri() { return host.text(URI, this.#subject); }
        get requestLine() { return host.text(REQUEST_LINE, this.#subject); }
        get httpVersion() { return host.text(HTTP_VERSION, this.#subject); }
        get remoteAddress() { return host.text(REMOTE_ADDRESS, this.#subject); }
        get internal() { return host.isInternal(this.#subject); }
        get parent() { return this.#own?.parent; }
        get args() { return (this.#own ??= {}).args ??= parseArgs(host.text(ARGS, this.#subject)); }
        get rawHeadersIn() { return pairs(IN, this.#subject); }
        get rawHeadersOut() { return pairs(OUT, this.#subject); }
        get headersIn() {
            return (this.#subject === 0 ? mainLookups : this.#own).headersIn ??= lookup(this.#subject, (name) => field(IN, this.#subject, name),
                () => names(IN, this.#subject));
        }
        get headersOut() {
            return (this.#subject === 0 ? mainLookups : this.#own).headersOut ??= lookup(this.#subject, (name) => field(OUT, this.#subject, name),
                () => names(OUT, this.#subject), this.#subject === 0 ? setField : undefined);
        }
        get variables() { return (this.#subject === 0 ? mainLookups : this.#own).variables ??= variables(this.#subject, false); }
        get rawVariables() { return (this.#subject === 0 ? mainLookups : this.#own).rawVariables ??= variables(this.#subject, true); }
        get status() { return host.status(this.#subject); }
        set status(value) { host.setStatus(integer(value)); }

        jsVarNames(prefix) { return variableNames(prefix); }

        get responseBuffer() { return core.buffer(this.#own?.response); }
        get responseText() {
            const bytes = this.#own?.response;
            return bytes === undefined ? undefined : host.decode(bytes);
        }
        get responseBody() { return this.responseText; }
        get requestBuffer() { return core.buffer(requestBytes(this.#own)); }
        get requestText() {
            const bytes = requestBytes(this.#own);
            return bytes === undefined ? undefined : host.decode(bytes);
        }
        get requestBody() { return this.requestText; }

        readRequestText() {
            return readBody(Request.#reader(this)).then((bytes) => host.decode(bytes));
        }
        readRequestArrayBuffer() {
            return readBody(Request.#reader(this)).then((bytes) => bytes.slice().buffer);
        }
        readRequestJSON() {
            return readBody(Request.#reader(this)).then((bytes) => JSON.parse(host.decode(bytes)));
        }
        readRequestForm(options) {
            const own = Request.#reader(this);
            const form = core.part('form');
            const countMax = form.countMax(options);
            return readBody(own).then((bytes) => own.form ??= form.parse(this.headersIn['Content-Type'], bytes, countMax));
        }

        return(status, body) {
            const code = integer(status);
            if (code < 0 || code > 999) {
                throw new RangeError('code is out of range');
            }
            if (code < 400 || (body !== undefined && body !== null)) {
                if (code >= 300 && REDIRECTS.has(code) && /[\0\r\n]/.test(core.text(body ?? ''))) {
                    throw new TypeError('invalid header value');
                }
                host.respond(code, body ?? '');
            } else {
                host.respond(code);
            }
        }
        sendHeader() { host.sendHeader(); }
        send(...values) {
            if (host.isFilter()) {
                throw new TypeError('cannot send while in body filter');
            }
            for (const value of values) {
                host.send(value);
            }
        }
        sendBuffer(data, options) {
            if (!host.isBodyFilter()) {
                throw new TypeError('cannot send buffer while not filtering');
            }
            host.sendBuffer(data, options?.last, options?.flush);
        }
        done() {
            if (!host.isBodyFilter()) {
                throw new TypeError('cannot set done while not filtering');
            }
            host.filterDone();
        }
        finish() { host.finish(); }
        decline() { host.decline(); }
        setReturnValue(value) { host.setReturnValue(value); }
        internalRedirect(uri) {
            if (this.#own?.parent) {
                throw new TypeError('internalRedirect cannot be called from a subrequest');
            }
            if (host.isFilter()) {
                throw new TypeError('internalRedirect cannot be called while filtering');
            }
            host.internalRedirect(uri);
        }
        subrequest(uri, options, callback) {
            if (this.#subject !== 0) {
                throw new TypeError('subrequest can only be created for the primary request');
            }
            return subrequest(this, uri, options, callback);
        }
    }
    for (const [name, number] of [['log', 1], ['warn', 2], ['error', 3]]) {
        Object.defineProperty(Request.prototype, name, { value: level(number), writable: true, configurable: true });
    }
    for (const name of ['method', 'uri', 'args', 'headersIn', 'headersOut', 'rawHeadersIn', 'rawHeadersOut', 'variables', 'httpVersion',
        'remoteAddress', 'status', 'internal', 'requestText', 'responseText', 'parent']) {
        const descriptor = Object.getOwnPropertyDescriptor(Request.prototype, name);
        Object.defineProperty(Request.prototype, name, { ...descriptor, enumerable: true });
    }

    function converted(value, name) {
        try {
            return core.isBinary(value) ? host.decode(core.view(value)) : core.text(value);
        } catch {
            throw new TypeError(`failed to convert ${name}`);
        }
    }

    function subrequest(request, uri, options, callback) {
        const target = converted(uri, 'uri arg');
        if (target === '') {
            throw new TypeError('uri is empty');
        }
        if (/(^|[/\\])\.\.([/\\]|$)|\0/.test(host.decodeUrl(target.split('?', 1)[0]))) {
            throw new Error('unsafe uri');
        }
        let args = '', method = '', body, isDetached = false;
        if (typeof options === 'string') {
            args = options;
        } else if (typeof options === 'function') {
            callback = options;
        } else if (typeof options === 'object' && options !== null) {
            args = converted(options.args ?? '', 'options.args');
            method = converted(options.method ?? '', 'options.method');
            body = options.body;
            isDetached = Boolean(options.detached);
        } else if (options !== undefined && options !== null) {
            throw new TypeError('failed to convert args');
        }
        if (callback !== undefined && callback !== null && typeof callback !== 'function') {
            throw new TypeError('callback is not a function');
        }
        if (isDetached && callback) {
            throw new TypeError('detached flag and callback are mutually exclusive');
        }
        const token = host.subrequest(target, args, method, body, isDetached);
        if (isDetached) {
            return undefined;
        }
        const promise = core.wait(token).then((bytes) => new Request(token, { parent: request, response: bytes }));
        if (callback) {
            promise.then((reply) => callback(reply));
            return undefined;
        }
        return promise;
    }

    return {
        make: () => new Request(0),
        refresh: Request.refresh,
        periodic: () => ({ variables: variables(0, false), rawVariables: variables(0, true) }),
        variables, variableNames, level,
    };
})
