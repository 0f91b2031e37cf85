function text() {
    equal(Array.from(new TextEncoder().encode('é€')), [195, 169, 226, 130, 172]);
    equal(new TextEncoder().encodeInto('aé', new Uint8Array(2)), { read: 1, written: 1 });
    equal(new TextDecoder().decode(new Uint8Array([195, 169])), 'é');
    equal(new TextDecoder().decode(new Uint8Array([0xef, 0xbb, 0xbf, 0x61])), 'a');
    equal(new TextDecoder('utf8', { ignoreBOM: true }).decode(new Uint8Array([0xef, 0xbb, 0xbf, 0x61])), '\ufeffa');
    equal(new TextDecoder().decode(new Uint8Array([255])), '\ufffd');
    throws(() => new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array([255])), 'not valid');
    throws(() => new TextDecoder('koi8-r'), 'not supported');
}
function stream() {
    const decoder = new TextDecoder();
    let text = '';
    for (const byte of new TextEncoder().encode('a€b😀')) {
        text += decoder.decode(new Uint8Array([byte]), { stream: true });
    }
    equal(text + decoder.decode(), 'a€b😀');
    decoder.decode(new Uint8Array([0xe2]), { stream: true });
    equal(decoder.decode(), '\ufffd');
}
function base64() {
    equal([btoa('hello'), atob('aGVsbG8=')], ['aGVsbG8=', 'hello']);
    throws(() => btoa('€'), '');
    equal(decodeURIComponent(encodeURIComponent('a&é')), 'a&é');
}
