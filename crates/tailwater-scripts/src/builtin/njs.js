// The global object `njs`, and texts of values for it and for `console`.
(function (host, core) {
    'use strict';

    const DEPTH_MAX = 32;

    function quote(text) {
        return `'${text.replace(/[\\']/g, '\\$&').replaceAll('\n', '\\n')}'`;
    }

    function key(name) {
        return typeof name === 'symbol' ? `[${String(name)}]` : /^[A-Za-z_$][\w$]*$/.test(name) || /^\d+$/.test(name) ? name : quote(name);
    }

    function leaf(value, depth) {
        switch (typeof value) {
        case 'string':
            return depth === 0 ? value : quote(value);
        case 'number':
            return Object.is(value, -0) ? '-0' : String(value);
        case 'bigint':
            return `${value}n`;
        case 'function':
            return `[${value.toString().startsWith('class') ? 'class' : 'Function'}${value.name ? `: ${value.name}` : ''}]`;
        case 'object':
            break;
        default:
            return String(value);
        }
        if (value === null) {
            return 'null';
        }
        if (value instanceof Error) {
            return value.stack ? `${value}\n${value.stack}`.trimEnd() : String(value);
        }
        if (value instanceof Date) {
            return Number.isNaN(value.getTime()) ? 'Invalid Date' : value.toISOString();
        }
        if (value instanceof RegExp) {
            return String(value);
        }
        if (value instanceof Number || value instanceof String || value instanceof Boolean) {
            return `[${value.constructor.name}: ${leaf(value.valueOf(), 1)}]`;
        }
        if (value instanceof Promise) {
            return 'Promise {}';
        }
        return undefined;
    }

    // Opening, entries and closing of a container.
    function content(value) {
        if (Array.isArray(value)) {
            return ['[', Array.from(value, (item) => [undefined, item]), ']'];
        }
        if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
            return [`${value.constructor.name} [`, Array.from(value, (item) => [undefined, item]), ']'];
        }
        if (value instanceof ArrayBuffer) {
            return [`ArrayBuffer {`, [['byteLength', value.byteLength]], '}'];
        }
        if (value instanceof Map) {
            return ['Map {', Array.from(value), '}'];
        }
        if (value instanceof Set) {
            return ['Set {', Array.from(value, (item) => [undefined, item]), '}'];
        }
        const names = Object.keys(value);
        const prototype = Object.getPrototypeOf(value);
        if (prototype && prototype !== Object.prototype) {
            for (const name of Object.keys(prototype)) {
                if (!names.includes(name)) {
                    names.push(name);
                }
            }
        }
        const name = value[Symbol.toStringTag];
        return [`${typeof name === 'string' && name ? `${name} ` : ''}{`, names.map((item) => [item, value[item]]), '}'];
    }

    function dump(value, indent, depth, seen) {
        const short = leaf(value, depth);
        if (short !== undefined) {
            return short;
        }
        if (seen.includes(value)) {
            return '[Circular]';
        }
        if (depth === DEPTH_MAX) {
            return '[Object]';
        }
        const inner = [...seen, value];
        const [open, entries, close] = content(value);
        const items = entries.map(([name, item]) => {
            const text = dump(item, indent, depth + 1, inner);
            return name === undefined ? text : typeof name === 'object' ? `${leaf(name, 1)} => ${text}` : `${key(name)}:${indent ? ' ' : ''}${text}`;
        });
        if (items.length === 0) {
            return open + close;
        }
        if (!indent) {
            return open + items.join(',') + close;
        }
        const pad = ' '.repeat(indent * (depth + 1));
        return `${open}\n${pad}${items.join(`,\n${pad}`)}\n${' '.repeat(indent * depth)}${close}`;
    }

    const njs = {
        version: '1.0.0',
        version_number: 0x010000,
        engine: 'QuickJS',
        dump(value, indent) {
            return dump(value, Math.min(Math.max(Math.trunc(Number(indent)) || 0, 0), 10), 0, []);
        },
        on(event, callback) {
            if (event !== 'exit') {
                throw new TypeError(`unknown event "${event}"`);
            }
            if (typeof callback !== 'function') {
                throw new TypeError('callback is not a function');
            }
            core.onExit(callback);
        },
    };
    Object.defineProperty(njs, Symbol.toStringTag, { value: 'njs' });
    return njs;
})
