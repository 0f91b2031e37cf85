import qs from 'querystring';
function parsing() {
    equal(qs.parse('a=1&b=%32&b=4&c&=x&d=a+b'), { a: '1', b: ['2', '4'], c: '', '': 'x', d: 'a b' });
    equal(qs.parse('a:1;b:2', ';', ':'), { a: '1', b: '2' });
    equal(qs.parse('a=1&b=2', null, null, { maxKeys: 1 }), { a: '1' });
    equal(qs.parse('a=%zz'), { a: '%zz' });
    equal(qs.parse('__proto__=1').__proto__, '1');
}
function building() {
    equal(qs.stringify({ a: 1, b: ['x', true], c: null, d: 'é&' }), 'a=1&b=x&b=true&c=&d=%C3%A9%26');
    equal(qs.stringify({ a: 1, b: 2 }, ';', ':'), 'a:1;b:2');
    equal([qs.escape('a b'), qs.unescape('a%20b')], ['a%20b', 'a b']);
}
