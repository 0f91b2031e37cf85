// Canonical form of XML (Canonical XML 1.0, Exclusive XML Canonicalization 1.0) of the nodes of `xml.js`.
(function () {
    'use strict';

    const XML_NAMESPACE = 'http://www.w3.org/XML/1998/namespace';
    const isElement = (node) => node.kind === 'element';
    const ESCAPES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', '\t': '&#x9;', '\n': '&#xA;', '\r': '&#xD;' };
    const escapeText = (text) => text.replace(/[&<>\r]/g, (character) => ESCAPES[character]);
    const escapeValue = (text) => text.replace(/[&<"\t\n\r]/g, (character) => ESCAPES[character]);
    const byCodePoints = (a, b) => {
        const [left, right] = [Array.from(a), Array.from(b)];
        for (let at = 0; at < Math.min(left.length, right.length); at++) {
            const difference = left[at].codePointAt(0) - right[at].codePointAt(0);
            if (difference !== 0) {
                return difference;
            }
        }
        return left.length - right.length;
    };

    // Namespaces in scope at a node, by their prefixes.
    function scopeOf(node) {
        const scope = new Map();
        for (let at = node; at?.kind === 'element'; at = at.parent) {
            for (const [prefix, namespace] of at.namespaces) {
                if (!scope.has(prefix)) {
                    scope.set(prefix, namespace);
                }
            }
        }
        return scope;
    }

    // Canonical form of a node and what is below it.
    class Canonical {
        constructor(options) {
            this.isExclusive = options.isExclusive;
            this.excluded = options.excluded;
            this.hasComments = options.hasComments;
            this.prefixes = options.prefixes;
            this.parts = [];
        }

        node(node, rendered, isApex) {
            if (node === this.excluded) {
                return;
            }
            switch (node.kind) {
            case 'element':
                this.element(node, rendered, isApex);
                break;
            case 'text':
                this.parts.push(escapeText(node.text));
                break;
            case 'comment':
                if (this.hasComments) {
                    this.parts.push(`<!--${node.text.replaceAll('\r', '&#xD;')}-->`);
                }
                break;
            case 'instruction':
                this.parts.push(`<?${node.target}${node.data === '' ? '' : ` ${node.data.replaceAll('\r', '&#xD;')}`}?>`);
                break;
            default:
                this.document(node);
            }
        }

        // Comments and instructions beside the root stand in lines of their own.
        document(document) {
            let isBehind = false;
            for (const child of document.children) {
                const length = this.parts.length;
                this.node(child, new Map(), true);
                if (isElement(child)) {
                    isBehind = true;
                } else if (this.parts.length > length) {
                    this.parts.splice(isBehind ? length : this.parts.length, 0, '\n');
                }
            }
        }

        element(node, rendered, isApex) {
            const name = node.prefix === '' ? node.name : `${node.prefix}:${node.name}`;
            const [declarations, known] = this.namespaces(node, rendered);
            this.parts.push(`<${name}`);
            for (const [prefix, namespace] of declarations) {
                this.parts.push(` xmlns${prefix === '' ? '' : `:${prefix}`}="${escapeValue(namespace)}"`);
            }
            const attributes = [...node.attributes, ...isApex && !this.isExclusive ? inheritedAttributes(node) : []];
            attributes.sort((a, b) => byCodePoints(a.namespace, b.namespace) || byCodePoints(a.name, b.name));
            for (const { prefix, name: own, value } of attributes) {
                this.parts.push(` ${prefix === '' ? own : `${prefix}:${own}`}="${escapeValue(value)}"`);
            }
            this.parts.push('>');
            for (const child of node.children) {
                this.node(child, known, false);
            }
            this.parts.push(`</${name}>`);
        }

        // Declarations of an element in their order, and all that are known below it.
        namespaces(node, rendered) {
            const scope = scopeOf(node);
            const used = new Set(this.isExclusive ? [node.prefix, ...node.attributes.map((item) => item.prefix).filter(Boolean)] : scope.keys());
            if (this.isExclusive) {
                this.prefixes.filter((prefix) => scope.has(prefix)).forEach((prefix) => used.add(prefix));
            } else {
                used.add('');
            }
            const known = new Map(rendered);
            const declarations = [];
            for (const prefix of used) {
                const namespace = scope.get(prefix) ?? '';
                if (prefix !== 'xml' && (known.get(prefix) ?? '') !== namespace) {
                    declarations.push([prefix, namespace]);
                    known.set(prefix, namespace);
                }
            }
            return [declarations.sort((a, b) => byCodePoints(a[0], b[0])), known];
        }
    }

    // Attributes such as xml:lang, which an element has from those around it.
    function inheritedAttributes(node) {
        const inherited = new Map();
        for (let at = node.parent; at?.kind === 'element'; at = at.parent) {
            for (const attribute of at.attributes.filter((item) => item.namespace === XML_NAMESPACE)) {
                const isOwn = node.attributes.some((item) => item.namespace === XML_NAMESPACE && item.name === attribute.name);
                if (!isOwn && !inherited.has(attribute.name)) {
                    inherited.set(attribute.name, attribute);
                }
            }
        }
        return inherited.values();
    }

    // Text of a node. `isExclusive`, `hasComments`, the node that is left out (`excluded`), and `prefixes` that are declared where they are in scope.
    function write(node, options) {
        const writer = new Canonical(options);
        writer.node(node, new Map(), true);
        return writer.parts.join('');
    }

    return { write, isElement, XML_NAMESPACE };
})
