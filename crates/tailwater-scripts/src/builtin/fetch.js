// `ngx.fetch()` with the classes `Headers`, `Request` and `Response`.
(function (host, core) {
    'use strict';

    const NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
    const CACHES = ['default', 'no-store', 'reload', 'no-cache', 'force-cache', 'only-if-cached'];
    const CREDENTIALS = ['same-origin', 'include', 'omit'];
    const MODES = ['no-cors', 'same-origin', 'cors', 'navigate', 'websocket'];

    function checkName(name) {
        const text = core.text(name);
        if (!NAME.test(text)) {
            throw new TypeError('invalid header name');
        }
        return text;
    }

    function checkValue(value) {
        const text = core.text(value).replace(/^[ \t]+|[ \t]+$/g, '');
        if (/[\0-\x08\x0a-\x1f\x7f]/.test(text)) {
            throw new TypeError('invalid header value');
        }
        return text;
    }

    class Headers {
        #list = [];
        #isImmutable = false;

        constructor(init) {
            if (init === undefined || init === null) {
                return;
            }
            if (typeof init !== 'object') {
                throw new TypeError('Headers is not an object');
            }
            const pairs = init instanceof Headers ? init.#list : Array.isArray(init) ? init : Object.keys(init).map((key) => [key, init[key]]);
            for (const pair of pairs) {
                if (!Array.isArray(pair) || pair.length !== 2) {
                    throw new TypeError('header does not contain exactly two items');
                }
                for (const value of Array.isArray(pair[1]) ? pair[1] : [pair[1]]) {
                    this.append(pair[0], value);
                }
            }
        }
        static freeze(headers) {
            headers.#isImmutable = true;
            return headers;
        }
        static pairs(headers) { return headers.#list; }

        get [Symbol.toStringTag]() { return 'Headers'; }
        static #of(object) {
            if (typeof object !== 'object' || object === null || !(#list in object)) {
                throw new TypeError('"this" is not fetch headers object');
            }
            return object;
        }
        static #change(object) {
            if (Headers.#of(object).#isImmutable) {
                throw new TypeError('cannot modify immutable object');
            }
        }
        // Each header is a property, too.
        #show(name) {
            for (const key of [name, name.toLowerCase()]) {
                if (!(key in this)) {
                    Object.defineProperty(this, key, {
                        get() { return this.get(name) ?? undefined; },
                        enumerable: key === name,
                        configurable: true,
                    });
                }
            }
        }
        append(name, value) {
            Headers.#change(this);
            const key = checkName(name);
            const known = this.#list.find((pair) => pair[0].toLowerCase() === key.toLowerCase());
            this.#list.push([known ? known[0] : key, checkValue(value)]);
            if (!known) {
                this.#show(key);
            }
        }
        delete(name) {
            Headers.#change(this);
            const key = checkName(name).toLowerCase();
            const removed = this.#list.find((pair) => pair[0].toLowerCase() === key);
            this.#list = this.#list.filter((pair) => pair[0].toLowerCase() !== key);
            if (removed) {
                for (const shown of new Set([removed[0], key])) {
                    if (Object.hasOwn(this, shown)) {
                        delete this[shown];
                    }
                }
            }
        }
        get(name) {
            const values = this.getAll(name);
            return values.length ? values.join(', ') : null;
        }
        getAll(name) {
            const key = core.text(name).toLowerCase();
            return Headers.#of(this).#list.filter((pair) => pair[0].toLowerCase() === key).map((pair) => pair[1]);
        }
        has(name) { return this.getAll(name).length > 0; }
        set(name, value) {
            Headers.#change(this);
            const key = checkName(name);
            const text = checkValue(value);
            const at = this.#list.findIndex((pair) => pair[0].toLowerCase() === key.toLowerCase());
            if (at < 0) {
                this.append(key, text);
                return;
            }
            const kept = this.#list[at][0];
            const rest = this.#list.slice(at).filter((pair) => pair[0].toLowerCase() !== kept.toLowerCase());
            this.#list = [...this.#list.slice(0, at), [kept, text], ...rest];
        }
        // As in njs, the callback gets the name first.
        forEach(callback) {
            const headers = Headers.#of(this);
            if (typeof callback !== 'function') {
                throw new TypeError('"callback" is not a function');
            }
            for (const name of [...new Set(headers.#list.map((pair) => pair[0]))].sort()) {
                callback(name, headers.get(name));
            }
        }
    }

    class Body {
        #bytes;
        #isUsed = false;

        constructor(bytes) { this.#bytes = bytes; }
        get bodyUsed() { return this.#isUsed; }
        static bytes(body) { return body.#bytes; }
        #use() {
            if (this.#isUsed) {
                throw new TypeError('body stream already read');
            }
            this.#isUsed = true;
            return this.#bytes ?? new Uint8Array(0);
        }
        async arrayBuffer() { return this.#use().slice().buffer; }
        async text() { return host.decode(this.#use()); }
        async json() { return JSON.parse(host.decode(this.#use())); }
    }

    function bodyBytes(value) {
        if (value === undefined || value === null) {
            return undefined;
        }
        return core.isBinary(value) ? core.view(value).slice() : host.encodeUtf8(core.text(value));
    }

    function choice(value, list, name, fallback) {
        if (value === undefined) {
            return fallback;
        }
        const text = core.text(value);
        if (!list.includes(text)) {
            throw new TypeError(`unknown ${name} type: ${text}`);
        }
        return text;
    }

    function checkMethod(value) {
        const method = core.text(value);
        if (method === '' || /[\0-\x20\x7f]/.test(method)) {
            throw new TypeError('invalid Request method');
        }
        const upper = method.toUpperCase();
        if (['CONNECT', 'TRACE', 'TRACK'].includes(upper)) {
            throw new TypeError(`forbidden method: ${upper}`);
        }
        return ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS'].includes(upper) ? upper : method;
    }

    class Request extends Body {
        #url;
        #method;
        #headers;
        #cache;
        #credentials;
        #mode;

        constructor(input, options = {}) {
            if (input === undefined) {
                throw new TypeError('1st argument is required');
            }
            const from = input instanceof Request ? input : undefined;
            const method = options?.method === undefined ? from?.method ?? 'GET' : checkMethod(options.method);
            const body = options?.body === undefined ? from && Body.bytes(from) : bodyBytes(options.body);
            super(body);
            this.#url = from ? from.url : (core.isBinary(input) ? host.decode(core.view(input)) : core.text(input))
                .replace(/^[\0-\x20]+|[\0-\x20]+$/g, '');
            if (!from && !/^https?:\/\/[^/?#]/i.test(this.#url)) {
                throw new TypeError(/^[a-z][a-z0-9+.-]*:/i.test(this.#url) ? 'unsupported URL schema (only http or https are supported)'
                    : 'invalid url');
            }
            this.#method = method;
            this.#headers = new Headers(options?.headers ?? from?.headers);
            if (body !== undefined && typeof options?.body === 'string' && !this.#headers.has('Content-Type')) {
                this.#headers.append('Content-Type', 'text/plain;charset=UTF-8');
            }
            this.#cache = choice(options?.cache, CACHES, 'cache', from?.cache ?? 'default');
            this.#credentials = choice(options?.credentials, CREDENTIALS, 'credentials', from?.credentials ?? 'same-origin');
            this.#mode = choice(options?.mode, MODES, 'mode', from?.mode ?? 'no-cors');
        }
        get [Symbol.toStringTag]() { return 'Request'; }
        get url() { return this.#url; }
        get method() { return this.#method; }
        get headers() { return this.#headers; }
        get cache() { return this.#cache; }
        get credentials() { return this.#credentials; }
        get mode() { return this.#mode; }
    }

    class Response extends Body {
        #status;
        #statusText;
        #headers;
        #url = '';

        constructor(body, options = {}) {
            const status = options?.status === undefined ? 200 : Math.trunc(Number(options.status));
            if (!(status >= 200 && status <= 599)) {
                throw new RangeError('status provided (' + core.text(options.status) + ') is outside of [200, 599] range');
            }
            const statusText = options?.statusText === undefined ? '' : core.text(options.statusText);
            if (/[^\t\x20-\x7e\x80-\uffff]/.test(statusText)) {
                throw new TypeError('invalid Response statusText');
            }
            super(bodyBytes(body));
            this.#status = status;
            this.#statusText = statusText;
            this.#headers = new Headers(options?.headers);
            if (typeof body === 'string' && !this.#headers.has('Content-Type')) {
                this.#headers.append('Content-Type', 'text/plain;charset=UTF-8');
            }
        }
        static received(url, response) {
            const object = new Response(response.body);
            object.#status = response.status;
            object.#statusText = response.reason;
            object.#headers = Headers.freeze(new Headers(response.fields));
            object.#url = url;
            return object;
        }
        get [Symbol.toStringTag]() { return 'Response'; }
        get status() { return this.#status; }
        get statusText() { return this.#statusText; }
        get ok() { return this.#status >= 200 && this.#status <= 299; }
        get headers() { return this.#headers; }
        get redirected() { return false; }
        get type() { return 'basic'; }
        get url() { return this.#url; }
    }

    // Lines of a stack that belong to scripts.
    function ownLines(stack) {
        return stack.split('\n').filter((line) => !line.includes('(tailwater:')).join('\n');
    }

    function send(request, options) {
        const origin = new Error();
        const size = (value) => value === undefined ? undefined : Number(value);
        return core.wait(host.fetch({
            url: request.url,
            method: request.method,
            fields: Headers.pairs(request.headers),
            body: Body.bytes(request),
            bufferSize: size(options?.buffer_size),
            responseSizeMax: size(options?.max_response_body_size),
            isVerified: options?.verify === undefined ? undefined : Boolean(options.verify),
        })).then((response) => Response.received(request.url, response), (error) => {
            // The place of an error of the server is that of its request.
            Object.defineProperty(error, 'stack', { value: ownLines(origin.stack), writable: true, configurable: true });
            throw error;
        });
    }

    function fetch(input, options) {
        try {
            return send(new Request(input, options), options);
        } catch (error) {
            return Promise.reject(error);
        }
    }

    return { Headers, Request, Response, fetch };
})
