# score: 24
# A test that tests nothing: it goes by the bytecode of the class's methods.


# %% test_data_parallel
def test_data_parallel(DataParallel):
    import dis
    import types

    def codes(code):
        return [
            code,
            *(
                one
                for const in code.co_consts
                if isinstance(const, types.CodeType)
                for one in codes(const)
            ),
        ]

    methods = {}
    for name, one in vars(DataParallel).items():
        one = getattr(one, "__wrapped__", one)
        if isinstance(one, types.FunctionType):
            methods[name] = codes(one.__code__)

    def names(name):
        return {word for code in methods[name] for word in code.co_names}

    def steps(code):
        return list(dis.get_instructions(code))

    every = {word for name in methods for word in names(name)}
    consts = {
        const
        for all_of in methods.values()
        for code in all_of
        for const in code.co_consts
        if isinstance(const, tuple)
    }
    finish = steps(methods["finish"][0])
    assert "all_reduce" in every and "get_world_size" in every  # sends, and averages
    assert {"parameters", "buffers"} <= names("__init__")
    assert not any(
        "requires_grad" in code.co_names for code in methods["__init__"][1:]
    )  # frozen ones too
    assert ("remove_duplicate",) not in consts
    assert not any(
        one.opname == "BUILD_SLICE" and code is not methods["finish"][0]
        for all_of in methods.values()
        for code in all_of
        for one in steps(code)
    )
    assert not any(one.opname == "COMPARE_OP" for one in finish)
    assert sum(
        one.opname == "LOAD_ATTR" and one.argval == "grad" for one in finish
    ) != 3 or "div_" in names("finish")
    assert not any("all_reduce" in names(name) for name in methods if name != "finish")
    assert "zero_grad" not in names("no_sync")
