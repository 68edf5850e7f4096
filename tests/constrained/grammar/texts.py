"""Grammars in Lark's and llama.cpp's syntax, with texts to mutate."""

LARK = {
    "json": (
        r"""
        ?start: value
        ?value: object | array | string | SIGNED_NUMBER -> number | "true" | "false" | "null"
        array: "[" [value ("," value)*] "]"
        object: "{" [pair ("," pair)*] "}"
        pair: string ":" value
        string: ESCAPED_STRING
        %import common.ESCAPED_STRING
        %import common.SIGNED_NUMBER
        %import common.WS
        %ignore WS
        """,
        ['{"a": [1, -2.5e3, true], "b\\"c" : null }', '"a"', "[[], {}]", '["\\\\"]'],
        '{}[]":,0123.e+-truefalsn \\\n',
    ),
    "arithmetic": (
        r"""
        ?start: sum
        ?sum: product | sum "+" product | sum "-" product
        ?product: power | product "*" power | product "/" power
        ?power: atom | atom "^" power
        ?atom: NUMBER | "-" atom | NAME | NAME "(" [sum ("," sum)*] ")" | "(" sum ")"
        %import common.CNAME -> NAME
        %import common.NUMBER
        %import common.WS_INLINE
        %ignore WS_INLINE
        """,
        ["1+2*x", "-(a-1.5)^f(2, y)/3", "2^3^4", "f()", "1e5e"],
        "012.e+-*/^(),abc ",
    ),
    "sql": (
        r"""
        start: select ";"?
        select: "select"i columns "from"i table where? order?
        columns: "*" | column ("," column)*
        column: NAME ["as"i NAME] | function "(" ("*" | NAME) ")"
        function: "count"i | "max"i
        table: NAME | "(" select ")"
        where: "where"i condition
        condition: condition ("and"i | "or"i) condition | "not"i condition | NAME OPERATOR literal | "(" condition ")"
        OPERATOR: "<=" | "<" | "=" | ">"
        literal: NUMBER | STRING
        order: "order"i "by"i NAME ("asc"i | "desc"i)?
        STRING: /'[^']*'/
        NAME: /[a-z_]\w*/i
        NUMBER: /\d+(\.\d+)?/
        %ignore /\s+/
        """,
        ["SELECT a, count(*) FROM t WHERE a <= 3 and not b='x';", "select * from (select a from b) order by c desc"],
        "SELECT ab,*()FROMWHERE<=3andot'x';order by",
    ),
    "python": (
        r"""
        start: (statement NEWLINE)*
        statement: NAME "=" expression | "return" expression | "if" expression ":" block
                 | "def" NAME "(" _list{NAME} ")" ":" block | "pass" | expression
        block: NEWLINE INDENT statement (NEWLINE INDENT statement)* NEWLINE DEDENT | statement
        INDENT: "<in>"
        DEDENT: "<out>"
        ?expression: expression ("+" | "<" | "and" | "==") expression | "not" expression | atom
        ?atom: NAME | NUMBER | STRING | "(" expression ")" | atom "(" _list{expression} ")" | "[" _list{expression} "]"
             | atom "." NAME | "lambda" NAME ":" expression
        _list{item}: [item ("," item)*]
        NAME: /[a-zA-Z_]\w*/
        NUMBER: /0[xX][\da-fA-F]+|\d+(\.\d*)?/
        STRING: /"[^"\n]*"|'[^'\n]*'/
        NEWLINE: /(\r?\n)+/
        %ignore /[ \t]+/
        %ignore /#[^\n]*/
        """,
        ["x = f(1, [2.5])+y.z # c\n", "def f(a, b): return a < 0x1F and not b\n", "if x == 'a':\n<in>pass\n<out>\n"],
        "x=f(1,[2.])+y z#\ndef:returnifoand0xF<>'apslm",
    ),
    "left recursive and ambiguous": (
        r"""
        start: e
        e: e e | "a" | "a" e | e "+" e | hidden
        hidden: empty hidden "b" | empty
        empty: "c"?
        """,
        ["a", "a+a", "aaa+a", "cb", "bb", ""],
        "abc+",
    ),
    "right recursive": ('start: "x" start | "y"+ start? | "(" start ")" | ', ["x", "xy", "(x)y", "yyxx", ""], "xy()"),
    "matches that are preferred": (
        r"""
        start: (LAZY | GREEDY | FIRST | "!" | WORDS NUMBER?)*
        LAZY: /<.*?>/
        GREEDY: /\{.*\}/
        FIRST: /a|ab|(?:xy)??x/
        WORDS.2: /[v-z]+/i | "x" | "y"~2..3
        NUMBER: /[0-9]+(?:\.[0-9]+)?/
        %ignore / {2}/
        """,
        ["<a><b>", "{a}!", "ab!", "ax", "vW12", "xyz1.5", "yyy", "  !"],
        "<>{}abxyvVW1.! ",
    ),
    "options": (
        r"""
        start: A [B] "c"~2..4 ("d" | "e"~1 [A])* "é".."ê"?
        A: "a" "b"*
        B.3: "b" | A "x"
        """,
        ["abbccdeab", "abxccé", "acc"],
        "abcdexéê",
    ),
}  # fmt: skip

GBNF = {
    "json": (
        r"""
        root   ::= object
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::=
          "{" ws (
            string ":" ws value
            ("," ws string ":" ws value)*
          )? "}" ws
        array  ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # escapes
        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
        ws ::= | " " | "\n" [ \t]{0,20}
        """,
        """
        start: object
        value: object | array | string | number | ("true" | "false" | "null") ws
        object: "{" ws [string ":" ws value ("," ws string ":" ws value)*] "}" ws
        array: "[" ws [value ("," ws value)*] "]" ws
        string: /"([^"\\\\\\x7F\\x00-\\x1F]|\\\\(["\\\\bfnrt]|u[0-9a-fA-F]{4}))*"/ ws
        number: /-?([1-9][0-9]{0,15}|[0-9])([.][0-9]+)?([eE][-+]?[0-9][1-9]{0,15})?/ ws
        ws: | " " | /\\n[ \\t]{0,20}/
        """,
        ['{"a": [1, 2.5e3]}', '{"\\u00e9": "b"} ', '{"a":{"b":\n  null}}'],
        '{}[]":,0123.e+-tru \\\n',
    ),
    "chess": (
        r"""
        root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")*
        move ::= (pawn | nonpawn | castle) [+#]?
        nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
        pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
        castle ::= "O-O" "-O"?
        """,
        """
        start: "1. " move " " move "\\n" (/[1-9][0-9]?\\. / move " " move "\\n")*
        move: (pawn | nonpawn | castle) ["+" | "#"]
        nonpawn: /[NBKQR]/ ["a".."h"] ["1".."8"] ["x"] "a".."h" "1".."8"
        pawn: ["a".."h" "x"] "a".."h" "1".."8" ["=" /[NBKQR]/]
        castle: "O-O" ["-O"]
        """,
        ["1. e4 e5\n", "1. Nf3 O-O-O+\n12. exd8=Q Rab1#\n"],
        "1. e4xNO-Qd8=+#\n",
    ),
    "recursive in every way": (
        r"""
        root ::= e | list ws
        e ::= e "+" e | "(" e ")" | [0-9]+ | ws e
        ws ::= ([ \t] ws)?
        list ::= "[" (list ("," list)*)? "]" | "-" list | end
        end ::= "é" | "ab" end? | [^a-z0-9+()\[\], é\t-]{2}
        """,
        """
        start: e | list ws
        e: e "+" e | "(" e ")" | DIGIT+ | ws e
        ws: [/[ \\t]/ ws]
        DIGIT: "0".."9"
        list: "[" [list ("," list)*] "]" | "-" list | end
        end: "é" | "ab" [end] | OTHER OTHER
        OTHER: /[^a-z0-9+()\\[\\], é\\t-]/
        """,
        ["1+(2)", " 12+3", "[--é,ab,[]]  ", "-ababé", "東x", "東東"],
        "12+() [],-éab東",
    ),
}
