// The module `querystring`.
(function (host, core) {
    'use strict';

    const KEYS_MAX = 1000;

    function escape(value) {
        return encodeURIComponent(core.text(value));
    }

    function unescape(value) {
        return host.decodeUrl(core.text(value));
    }

    // Function of the module, which scripts may exchange.
    function own(name) {
        if (typeof module[name] !== 'function') {
            throw new TypeError(`QueryString.${name} is not a function`);
        }
        return module[name];
    }

    function parse(query, separator, equals, options = {}) {
        const sep = separator ? core.text(separator) : '&';
        const eq = equals ? core.text(equals) : '=';
        const decode = options?.decodeURIComponent ?? own('unescape');
        const countMax = options?.maxKeys === undefined ? KEYS_MAX : Number(options.maxKeys);
        const result = {};
        if (typeof decode !== 'function') {
            throw new TypeError('option decodeURIComponent is not a function');
        }
        const items = core.text(query ?? '').split(sep);
        for (const item of countMax > 0 ? items.slice(0, countMax) : items) {
            if (item === '') {
                continue;
            }
            const at = item.indexOf(eq);
            const pair = at < 0 ? [item, ''] : [item.slice(0, at), item.slice(at + eq.length)];
            const [name, value] = pair.map((part) => decode(part.replaceAll('+', ' ')));
            if (!Object.hasOwn(result, name)) {
                Object.defineProperty(result, name, { value, writable: true, enumerable: true, configurable: true });
            } else if (Array.isArray(result[name])) {
                result[name].push(value);
            } else {
                result[name] = [result[name], value];
            }
        }
        return result;
    }

    function primitive(value) {
        switch (typeof value) {
        case 'string':
        case 'boolean':
        case 'bigint':
            return String(value);
        case 'number':
            return Number.isFinite(value) ? String(value) : '';
        default:
            return '';
        }
    }

    function stringify(object, separator, equals, options = {}) {
        const sep = separator ? core.text(separator) : '&';
        const eq = equals ? core.text(equals) : '=';
        const encode = options?.encodeURIComponent ?? own('escape');
        if (typeof encode !== 'function') {
            throw new TypeError('option encodeURIComponent is not a function');
        }
        if (typeof object !== 'object' || object === null) {
            return '';
        }
        return Object.entries(object).flatMap(([name, value]) => (Array.isArray(value) ? value : [value])
            .map((item) => encode(name) + eq + encode(primitive(item)))).join(sep);
    }

    const module = { parse, stringify, escape, unescape, decode: parse, encode: stringify };
    return { module };
})
