// The module `xml`: a document as a tree of objects, and changes of it.
(function (host, core) {
    'use strict';

    const { write, isElement, XML_NAMESPACE } = core.part('canonical');
    const NAME = /^[\p{L}_][\p{L}\p{N}_.\-\u00b7]*(?::[\p{L}_][\p{L}\p{N}_.\-\u00b7]*)?$/u;
    const nodes = new WeakMap();
    const proxies = new WeakMap();

    class XMLDoc {}
    class XMLNode {
        addChild(child) { addChildren(nodeOf(this), [contentOf(child)]); }
        removeChildren(name) {
            if (name !== undefined && name !== null && typeof name !== 'string') {
                throw new TypeError('selector is not a string');
            }
            removeElements(nodeOf(this), name ?? '');
        }
        setAttribute(name, value) { setAttribute(nodeOf(this), attributeName(name), value); }
        removeAttribute(name) { setAttribute(nodeOf(this), attributeName(name), null); }
        removeAllAttributes() { nodeOf(this).attributes.length = 0; }
        setText(value) { setText(nodeOf(this), value); }
        removeText() { setText(nodeOf(this), null); }
    }
    class XMLAttr {}
    for (const owner of [XMLDoc, XMLNode, XMLAttr]) {
        Object.defineProperty(owner.prototype, Symbol.toStringTag, { value: owner.name, configurable: true });
    }

    function nodeOf(value) {
        const node = nodes.get(value);
        if (node === undefined || node.kind !== 'element') {
            throw new TypeError('"this" is not a XMLNode object');
        }
        return node;
    }

    // The node of a document or an element.
    function contentOf(value) {
        const node = typeof value === 'object' && value !== null ? nodes.get(value) : undefined;
        if (node === undefined) {
            throw new TypeError('value is not XMLNode or XMLDoc');
        }
        return node.kind === 'document' ? rootOf(node) : node;
    }

    function attributeName(name) {
        if (typeof name !== 'string') {
            throw new TypeError('"name" argument is not a string');
        }
        return name;
    }

    const elements = (node, name = '') => node.children.filter((child) => isElement(child) && (name === '' || child.name === name));
    const rootOf = (document) => document.children.find(isElement);

    function split(name) {
        const at = name.indexOf(':');
        return at < 0 ? ['', name] : [name.slice(0, at), name.slice(at + 1)];
    }

    // Namespace of a prefix at a node; undefined if it is not declared.
    function namespaceOf(node, prefix) {
        if (prefix === 'xml') {
            return XML_NAMESPACE;
        }
        for (let at = node; at?.kind === 'element'; at = at.parent) {
            if (at.namespaces.has(prefix)) {
                return at.namespaces.get(prefix);
            }
        }
        return prefix === '' ? '' : undefined;
    }

    function makeElement(parent, name, attributes) {
        const [prefix, local] = split(name);
        const node = { kind: 'element', prefix, name: local, namespace: '', namespaces: new Map(), attributes: [], children: [], parent };
        for (let at = 0; at < attributes.length; at += 2) {
            const [space, own] = split(attributes[at]);
            if (space === 'xmlns') {
                node.namespaces.set(own, attributes[at + 1]);
            } else if (space === '' && own === 'xmlns') {
                node.namespaces.set('', attributes[at + 1]);
            } else {
                node.attributes.push({ prefix: space, name: own, namespace: '', value: attributes[at + 1] });
            }
        }
        node.namespace = declared(node, prefix);
        for (const attribute of node.attributes) {
            attribute.namespace = attribute.prefix === '' ? '' : declared(node, attribute.prefix);
        }
        return node;
    }

    function declared(node, prefix) {
        const namespace = namespaceOf(node, prefix);
        if (namespace === undefined) {
            throw new SyntaxError(`failed to parse XML (namespace prefix ${prefix} on ${node.name} is not defined)`);
        }
        return namespace;
    }

    function parse(source) {
        if (typeof source !== 'string' && !core.isBinary(source)) {
            throw new TypeError('source is not a string or Buffer-like object');
        }
        const document = { kind: 'document', children: [] };
        let current = document;
        for (const [kind, first, ...rest] of host.parseXml(source)) {
            switch (kind) {
            case 'start': {
                const node = makeElement(current, first, rest);
                current.children.push(node);
                current = node;
                break;
            }
            case 'end':
                current = current.parent;
                break;
            case 'instruction':
                current.children.push({ kind, target: first, data: rest[0], parent: current });
                break;
            default:
                current.children.push({ kind, text: first, parent: current });
            }
        }
        return wrap(document);
    }

    function textOf(node) {
        switch (node.kind) {
        case 'text':
            return node.text;
        case 'element': {
            let text = '';
            for (const child of node.children) {
                text += textOf(child);
            }
            return text;
        }
        default:
            return '';
        }
    }

    function setText(node, value) {
        const text = value === null || value === undefined ? '' : core.text(value);
        node.children = text === '' ? [] : [{ kind: 'text', text, parent: node }];
    }

    function setAttribute(node, name, value) {
        if (!NAME.test(name)) {
            throw new TypeError(`attribute name "${name}" is not valid`);
        }
        const [prefix, local] = split(name);
        const at = node.attributes.findIndex((item) => item.prefix === prefix && item.name === local);
        if (value === null || value === undefined) {
            if (at >= 0) {
                node.attributes.splice(at, 1);
            }
            return;
        }
        const namespace = prefix === '' ? '' : namespaceOf(node, prefix);
        if (namespace === undefined) {
            throw new TypeError(`namespace prefix of attribute "${name}" is not defined`);
        }
        const attribute = { prefix, name: local, namespace, value: core.text(value) };
        node.attributes.splice(at < 0 ? node.attributes.length : at, at < 0 ? 0 : 1, attribute);
    }

    function removeElements(node, name) {
        node.children = node.children.filter((child) => !isElement(child) || (name !== '' && child.name !== name));
    }

    function copy(node, parent) {
        if (!isElement(node)) {
            return { ...node, parent };
        }
        const made = { ...node, namespaces: new Map(), attributes: node.attributes.map((item) => ({ ...item })), parent };
        made.children = [];
        for (const child of node.children) {
            made.children.push(copy(child, made));
        }
        return made;
    }

    // Copies of nodes as children; namespaces that they need are declared at the parent.
    function addChildren(parent, added) {
        for (const node of added) {
            const made = copy(node, parent);
            declare(parent, made);
            parent.children.push(made);
        }
    }

    function declare(parent, node) {
        if (!isElement(node)) {
            return;
        }
        const used = [node, ...node.attributes.filter((attribute) => attribute.prefix !== '')];
        for (const { prefix, namespace } of used) {
            if (namespaceOf(node, prefix) === namespace) {
                continue;
            }
            const owner = prefix !== '' && !parent.namespaces.has(prefix) ? parent : node;
            owner.namespaces.set(prefix, namespace);
        }
        for (const child of node.children) {
            declare(parent, child);
        }
    }

    // Properties of an element.
    function read(node, key) {
        switch (key) {
        case '$name':
            return node.name;
        case '$ns':
            return node.namespace === '' ? undefined : node.namespace;
        case '$parent':
            return node.parent?.kind === 'element' ? wrap(node.parent) : undefined;
        case '$attrs':
            return node.attributes.length > 0 ? wrapAttributes(node) : undefined;
        case '$tags':
            return elements(node).map(wrap);
        case '$text':
            return textOf(node);
        default:
        }
        if (key.startsWith('$attr$')) {
            return node.attributes.find((attribute) => attribute.name === key.slice(6))?.value;
        }
        if (key.startsWith('$tags$')) {
            return elements(node, key.slice(6)).map(wrap);
        }
        const [found] = elements(node, key.startsWith('$tag$') ? key.slice(5) : key);
        return found && wrap(found);
    }

    function assign(node, key, value) {
        if (key === '$text') {
            setText(node, value);
        } else if (key.startsWith('$attr$')) {
            setAttribute(node, key.slice(6), value);
        } else if (key === '$tags' || key.startsWith('$tags$')) {
            if (!Array.isArray(value)) {
                throw new TypeError('setval is not an array');
            }
            const added = value.map(contentOf);
            node.children = [];
            addChildren(node, added);
        } else if (value === undefined || value === null) {
            removeElements(node, key.startsWith('$tag$') ? key.slice(5) : key);
        } else {
            throw new TypeError('XMLNode.$tag$xxx is not assignable, use addChild() or node.$tags = [node1, node2, ..] syntax');
        }
        return true;
    }

    function keys(node) {
        const names = ['$name'];
        if (node.namespace !== '') {
            names.push('$ns');
        }
        if (node.attributes.length > 0) {
            names.push('$attrs');
        }
        if (node.children[0] && !isElement(node.children[0])) {
            names.push('$text');
        }
        if (node.children.some(isElement)) {
            names.push('$tags');
        }
        return names;
    }

    // An object whose properties are computed: `properties` has functions for reading, writing, and for their names.
    function computed(prototype, properties) {
        const target = Object.create(prototype);
        return new Proxy(target, {
            get(_, key) {
                const value = typeof key === 'string' ? properties.read(key) : undefined;
                return value === undefined ? Reflect.get(target, key) : value;
            },
            has: (_, key) => (typeof key === 'string' && properties.read(key) !== undefined) || Reflect.has(target, key),
            set: (_, key, value) => typeof key === 'string' && properties.write(key, value),
            deleteProperty: (_, key) => typeof key === 'string' && properties.write(key, undefined),
            defineProperty: (_, key, { value }) => typeof key === 'string' && properties.write(key, value),
            ownKeys: () => properties.keys(),
            getOwnPropertyDescriptor(_, key) {
                const value = typeof key === 'string' ? properties.read(key) : undefined;
                return value === undefined ? undefined : { value, enumerable: true, configurable: true, writable: true };
            },
        });
    }

    function wrap(node) {
        let proxy = proxies.get(node);
        if (proxy === undefined) {
            proxy = node.kind === 'document' ? wrapDocument(node) : computed(XMLNode.prototype, {
                read: (key) => read(node, key),
                write: (key, value) => assign(node, key, value),
                keys: () => keys(node),
            });
            proxies.set(node, proxy);
            nodes.set(proxy, node);
        }
        return proxy;
    }

    function wrapDocument(document) {
        return computed(XMLDoc.prototype, {
            read(key) {
                const root = rootOf(document);
                return key === '$root' || key === root.name ? wrap(root) : undefined;
            },
            write() { throw new TypeError('an XMLDoc cannot be changed, only its nodes'); },
            keys: () => [rootOf(document).name],
        });
    }

    function wrapAttributes(node) {
        return computed(XMLAttr.prototype, {
            read: (key) => node.attributes.find((attribute) => attribute.name === key)?.value,
            write() { throw new TypeError('XMLAttr cannot be changed, use setAttribute()'); },
            keys: () => [...new Set(node.attributes.map((attribute) => attribute.name))],
        });
    }

    function canonical(root, excluding, withComments, prefixes, isExclusive) {
        const node = typeof root === 'object' && root !== null ? nodes.get(root) : undefined;
        if (node === undefined) {
            throw new TypeError('value is not XMLNode or XMLDoc');
        }
        let excluded;
        if (excluding !== undefined && excluding !== null) {
            excluded = typeof excluding === 'object' ? nodes.get(excluding) : undefined;
            if (excluded === undefined || excluded.kind !== 'element') {
                throw new TypeError('"excluding" argument is not a XMLNode object');
            }
        }
        if (prefixes !== undefined && prefixes !== null && typeof prefixes !== 'string') {
            throw new TypeError('"prefixes" argument is not a string');
        }
        return write(node, {
            isExclusive,
            excluded,
            hasComments: Boolean(withComments) && excluded === undefined,
            prefixes: (prefixes ?? '').split(/\s+/).filter(Boolean).map((prefix) => prefix === '#default' ? '' : prefix),
        });
    }

    const buffer = (text) => core.buffer(host.encodeUtf8(text));
    return {
        module: {
            parse,
            c14n: (root, excluding, withComments, prefixes) => buffer(canonical(root, excluding, withComments, prefixes, false)),
            exclusiveC14n: (root, excluding, withComments, prefixes) => buffer(canonical(root, excluding, withComments, prefixes, true)),
            serialize: (root, excluding, withComments, prefixes) => buffer(canonical(root, excluding, withComments, prefixes, false)),
            serializeToString: (root, excluding, withComments, prefixes) => canonical(root, excluding, withComments, prefixes, false),
        },
    };
})
