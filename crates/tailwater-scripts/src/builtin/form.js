// Forms in request bodies: `application/x-www-form-urlencoded` and `multipart/form-data`.
(function (host, core) {
    'use strict';

    const KEYS_MAX = 128;

    class Form {
        #entries;
        constructor(entries) { this.#entries = entries; }
        get [Symbol.toStringTag]() { return 'RequestForm'; }
        get(name) {
            const key = core.text(name);
            return this.#entries.find((entry) => entry[0] === key)?.[1] ?? null;
        }
        getAll(name) {
            const key = core.text(name);
            return this.#entries.filter((entry) => entry[0] === key).map((entry) => entry[1]);
        }
        has(name) { return this.get(name) !== null; }
        forEach(callback, thisArgument) {
            if (typeof callback !== 'function') {
                throw new TypeError('"callback" is not a function');
            }
            for (const [name, value] of this.#entries) {
                callback.call(thisArgument, value, name, this);
            }
        }
        hasFiles() { return this.#entries.some((entry) => typeof entry[1] === 'object'); }
    }

    function limit(entries, countMax) {
        if (entries.length > countMax) {
            throw new RangeError('too many form fields');
        }
    }

    function urlencoded(text, countMax) {
        const entries = [];
        for (const item of text.split('&')) {
            if (item === '') {
                continue;
            }
            const at = item.indexOf('=');
            const [name, value] = at < 0 ? [item, ''] : [item.slice(0, at), item.slice(at + 1)];
            entries.push([name, value].map((part) => host.decodeUrl(part.replaceAll('+', ' '))));
            limit(entries, countMax);
        }
        return entries;
    }

    function parameter(header, name) {
        const match = new RegExp(`(?:^|;)\\s*${name}\\s*=\\s*(?:"((?:[^"\\\\]|\\\\.)*)"|([^;\\s]*))`, 'i').exec(header);
        return match ? match[1]?.replace(/\\(["\\])/g, '$1') ?? match[2] : undefined;
    }

    // Bytes are characters of the range 0 to 255 here, so that positions in them are positions in the text.
    function multipart(type, text, countMax) {
        const boundary = parameter(type.slice(type.indexOf(';')), 'boundary');
        if (!boundary || boundary.length > 70) {
            throw new TypeError('invalid multipart boundary');
        }
        const entries = [];
        const delimiter = `\r\n--${boundary}`;
        const body = `\r\n${text}`;
        let at = body.indexOf(delimiter);
        if (at < 0) {
            throw new TypeError('malformed multipart body');
        }
        for (;;) {
            at += delimiter.length;
            if (body.startsWith('--', at)) {
                return entries;
            }
            const start = body.indexOf('\r\n', at);
            const headEnd = start < 0 ? -1 : body.indexOf('\r\n\r\n', start);
            const end = headEnd < 0 ? -1 : body.indexOf(delimiter, headEnd + 2);
            if (end < 0 || body.slice(at, start).trim() !== '') {
                throw new TypeError('malformed multipart body');
            }
            const head = body.slice(start + 2, headEnd);
            const disposition = /^content-disposition:\s*form-data\s*(;.*)$/im.exec(head);
            const name = disposition ? parameter(disposition[1], 'name') : undefined;
            if (name === undefined) {
                throw new TypeError('malformed multipart body');
            }
            const file = parameter(disposition[1], 'filename');
            const value = file === undefined ? host.decodeLatin(body.slice(headEnd + 4, Math.max(end, headEnd + 4)))
                : Object.freeze({ name: host.decodeLatin(file) });
            entries.push([host.decodeLatin(name), value]);
            limit(entries, countMax);
            at = end;
        }
    }

    return {
        countMax(options) {
            if (options === undefined) {
                return KEYS_MAX;
            }
            if (typeof options !== 'object' || options === null) {
                throw new TypeError('"options" must be an object');
            }
            if (options.maxKeys === undefined) {
                return KEYS_MAX;
            }
            const count = Math.trunc(Number(options.maxKeys)) || 0;
            if (count < 1) {
                throw new TypeError('"maxKeys" must be a positive integer');
            }
            return count;
        },
        parse(type = '', bytes, countMax) {
            const kind = type.split(';')[0].trim().toLowerCase();
            switch (kind) {
            case 'application/x-www-form-urlencoded':
                return new Form(urlencoded(host.decode(bytes), countMax));
            case 'multipart/form-data':
                return new Form(multipart(type, host.latin(bytes), countMax));
            default:
                throw new TypeError('unsupported content type');
            }
        },
    };
})
