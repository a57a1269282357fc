import os, sys, types

def read(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            os._exit(1)
        data += part
    return data

source = read(int.from_bytes(read(4), "big"))
if sys.version_info < (3, 9):
    read(int.from_bytes(read(4), "big"))
    said = b'{"failed":"Python %d.%d is older than 3.9"}' % sys.version_info[:2]
    os.write(0, len(said).to_bytes(4, "big") + said)
    os._exit(1)
module = sys.modules["nsbridge_handler"] = types.ModuleType("nsbridge_handler")
exec(compile(source, "<nsbridge_handler>", "exec"), module.__dict__)
module._main()
